"""Checks request bodies: the fields we know have the right types and ranges, all others pass untouched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)
from pydantic_core import ErrorDetails

from outrider.core import Hints
from outrider.errors import InvalidRequest

_MAX_STOPS = 16


class _Open(BaseModel):
    """Unknown fields are the lane's business."""

    model_config = ConfigDict(extra="allow")


def _check_stop(stop: object) -> object:
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
        raise ValueError("expected a non-empty string or a list of them")
    if len(stops) > _MAX_STOPS:
        raise ValueError(f"expected at most {_MAX_STOPS} strings, found {len(stops)}")
    return stop


def _check_prompt(prompt: object) -> object:
    if not prompt:
        raise ValueError("must not be empty")
    if not (isinstance(prompt, str) or _is_list_of(prompt, str) or _is_ids(prompt)):
        lists = prompt if isinstance(prompt, list) else [None]
        if not all(_is_ids(ids) for ids in lists):
            raise ValueError("expected a string, strings, token ids or lists of token ids, none of them empty")
    return prompt


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) and item for item in value)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and item >= 0 for item in value)


def _check_top_k(value: int) -> int:
    if value != -1 and value < 1:
        raise ValueError("expected -1 (off) or at least 1")
    return value


_Count = Annotated[StrictInt, Field(ge=1)]


class _Message(_Open):
    role: StrictStr
    content: StrictStr | list[Any] | None = None


class _Generation(_Open):
    """What both routes share. Null means absent, as in OpenAI's API."""

    model: StrictStr | None = None
    temperature: Annotated[StrictFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[StrictFloat, Field(gt=0, le=1)] | None = None
    min_p: Annotated[StrictFloat, Field(ge=0, le=1)] | None = None
    top_k: Annotated[StrictInt, AfterValidator(_check_top_k)] | None = None
    max_tokens: _Count | None = None
    stop: Annotated[Any, AfterValidator(lambda stop: stop if stop is None else _check_stop(stop))] = None
    stream: StrictBool | None = None
    stream_options: dict[str, Any] | None = None
    seed: StrictInt | None = None
    n: _Count | None = None
    custom_params: dict[str, Any] | None = None
    outrider: Hints | None = None


class ChatBody(_Generation):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: _Count | None = None

    @property
    def num_choices(self) -> int:
        return self.n or 1


class CompletionBody(_Generation):
    """`POST /v1/completions`."""

    prompt: Annotated[Any, AfterValidator(_check_prompt)]

    @property
    def num_choices(self) -> int:
        prompts = self.prompt
        is_batch = isinstance(prompts, list) and not isinstance(prompts[0], int)
        return (self.n or 1) * (len(prompts) if is_batch else 1)


#: pydantic's names for the members of the unions above, which it puts into locations.
_UNION_NAMES = frozenset({"str", "list[any]"})
#: Where pydantic speaks of Python rather than of JSON.
_MESSAGES = {
    "dict_type": "expected an object",
    "extra_forbidden": "unknown key",
    "missing": "is required",
    "model_type": "expected an object",
    "too_short": "must not be empty",
}

Route = Literal["/v1/chat/completions", "/v1/completions"]

_MODELS: Mapping[Route, type[ChatBody | CompletionBody]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body that passed: as plain JSON for those who look further, and as checked fields."""

    body: Mapping[str, Any]
    fields: ChatBody | CompletionBody


def parse_body(route: Route, raw: bytes) -> Parsed:
    """InvalidRequest names the field that is wrong, `body` for a body that is no JSON object."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"body is not valid JSON: {error}", param="body") from error
    if not isinstance(body, dict):
        raise InvalidRequest("body must be a JSON object", param="body")
    try:
        return Parsed(body, _MODELS[route].model_validate(body))
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False, include_context=False)) from error


def _invalid(problems: list[ErrorDetails]) -> InvalidRequest:
    # Of a union, the problem that lies deepest belongs to the member that was meant.
    field = problems[0]["loc"][0]
    first = max((one for one in problems if one["loc"][0] == field), key=lambda one: len(_path(one)))
    path = _path(first)
    message = _MESSAGES.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    return InvalidRequest(f"{path}: {message[:1].lower()}{message[1:]}", param=path)


def _path(problem: ErrorDetails) -> str:
    """`messages[0].role`; the names that pydantic gives to members of a union are left out."""
    path = ""
    for part in problem["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in _UNION_NAMES:
            path += f".{part}" if path else part
    return path
