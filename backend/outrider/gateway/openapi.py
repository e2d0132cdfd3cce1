"""The OpenAPI document of this gateway, made from its routes and from what checks their bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from outrider.gateway.access import OPEN_PATHS
from outrider.gateway.runs import MAX_ITEMS, MAX_NUMBER
from outrider.gateway.schema import ROUTES
from outrider.runs.record import Status
from outrider.runtimes.dialects import MESSAGES
from outrider.version import __version__

_REF = "#/components/schemas/{model}"
_TEXT = {"type": "string"}
_MAYBE_TEXT = {"type": ["string", "null"]}
_ANY = {"type": "object"}


def _object(**properties: object) -> dict[str, Any]:
    """An object that has all of these, and maybe others."""
    return {"type": "object", "required": [*properties], "properties": properties}


_ERROR_FIELDS = _object(message=_TEXT, type=_TEXT, param=_MAYBE_TEXT, code=_MAYBE_TEXT)
_ERRORS = {
    "Error": _object(error=_ERROR_FIELDS),
    "AnthropicError": _object(type={"const": "error"}, error=_ERROR_FIELDS),
}
_MODEL = _object(id=_TEXT, object={"const": "model"})
_MODELS = _object(object={"const": "list"}, data={"type": "array", "items": _MODEL})
_STATUS = _object(status=_TEXT)
_READY = _object(status=_TEXT, lanes={"type": "array", "items": _ANY})
_RELOADED = _object(policies=_object(hash=_TEXT))
_RUN = _object(id=_TEXT, object={"const": "outrider.run"}, status={"enum": get_args(Status)})
_RUNS = _object(object={"const": "list"}, data={"type": "array", "items": _RUN}, has_more={"type": "boolean"})
#: Path -> status -> what the body is, where more is known than that it is an object.
_BODIES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "/v1/models": {"200": _MODELS},
    "/v1/models/{id}": {"200": _MODEL},
    "/health": {"200": _STATUS},
    "/live": {"200": _STATUS},
    "/ready": {"200": _READY, "503": _READY},
    "/outrider/reload": {"200": _RELOADED},
    "/outrider/runs": {"200": _RUNS},
    "/outrider/runs/{id}/cancel": {"200": _RUN},
    "/outrider/runs/{id}/events": {"204": {}},
    "/v1/responses/{id}": {"204": {}},
    **{path: {"202": _RUN} for path in ROUTES},
}
#: Path -> types of what it answers with 200, where that is no JSON.
_TYPES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "/metrics": {"text/plain": _TEXT},
    "/outrider/runs/{id}/events": {"text/event-stream": {}},
}
#: Of the routes that share a handler.
_SUMMARIES = {
    "/v1/chat/completions": "The next message of a conversation, in OpenAI's form.",
    "/v1/completions": "What follows a prompt, in OpenAI's form.",
    "/generate": "What follows a prompt, in SGLang's form.",
    "/v1/responses": "The next items of a conversation, in OpenAI's newer form.",
    "/v1/messages": "The next message of a conversation, in Anthropic's form.",
}
_STREAMING = (*ROUTES, "/v1/responses/{id}")
_DESCRIPTIONS = {"200": "Done.", "202": "Begun, in the background.", "204": "There is nothing more."}


def _optional(name: str, schema: Mapping[str, object], where: str = "query") -> dict[str, Any]:
    return {"name": name, "in": where, "required": False, "schema": schema}


_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_ITEMS}
_PAGE = [_optional("limit", _LIMIT), _optional("after", _TEXT)]
_NUMBER = {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}
#: Of GET.
_PARAMETERS: Mapping[str, list[dict[str, Any]]] = {
    "/outrider/runs": _PAGE,
    "/outrider/runs/{id}/events": [_optional("last-event-id", _NUMBER, "header")],
    "/v1/responses/{id}": [_optional("stream", {"enum": ["true", "false"]}), _optional("starting_after", _NUMBER)],
    "/v1/responses/{id}/input_items": [*_PAGE, _optional("order", {"enum": ["asc", "desc"]})],
}
#: What every answer carries.
_HEADERS = {"x-request-id": {"description": "Yours when it was well formed, else one of ours.", "schema": _TEXT}}


def document(router: web.UrlDispatcher) -> dict[str, Any]:
    """The whole document. Each handler's docstring says what its route is for."""
    models: list[tuple[type[BaseModel], Literal["validation"]]] = [(one, "validation") for one in ROUTES.values()]
    _, schemas = models_json_schema(models, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in router.routes():
        if route.resource is not None and route.method != "HEAD":
            path = route.resource.canonical
            paths.setdefault(path, {})[route.method.lower()] = _operation(path, route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Outrider", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"] | _ERRORS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(path: str, route: web.AbstractRoute) -> dict[str, Any]:
    summary, _, rest = (route.handler.__doc__ or "").strip().partition("\n")
    summary = _SUMMARIES.get(path, summary) if route.method == "POST" else summary
    operation: dict[str, Any] = {"summary": summary, "responses": _responses(path)}
    if rest.strip():
        operation["description"] = " ".join(rest.split())
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": one, "in": "path", "required": True, "schema": _TEXT} for one in names]
    parameters += _PARAMETERS.get(path, []) if route.method == "GET" else []
    if parameters:
        operation["parameters"] = parameters
    if path in ROUTES:
        schema = {"$ref": _REF.format(model=ROUTES[path].__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if path not in OPEN_PATHS:
        # Without any key in force everybody may ask.
        operation["security"] = [{"key": []}]
    return operation


def _responses(path: str) -> dict[str, Any]:
    error = {"$ref": _REF.format(model="AnthropicError" if path == MESSAGES else "Error")}
    bodies: dict[str, Mapping[str, Any]] = {"200": _ANY, **_BODIES.get(path, {}), "4XX": error, "5XX": error}
    responses = {status: _response(status, {"application/json": schema}) for status, schema in bodies.items()}
    if path in _STREAMING:
        responses["200"]["content"]["text/event-stream"] = {}
    if path in _TYPES:
        responses["200"] = _response("200", _TYPES[path])
    return responses


def _response(status: str, content: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "description": _DESCRIPTIONS.get(status, "Refused or failed."),
        "headers": _HEADERS,
        "content": {} if status == "204" else {kind: {"schema": schema} for kind, schema in content.items()},
    }
