"""Checks request bodies: the fields we know have the right types and ranges, all others pass untouched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

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
    WithJsonSchema,
)
from pydantic_core import ErrorDetails

from outrider.core import Hints
from outrider.errors import InvalidRequest
from outrider.runtimes.dialects import GENERATE, MESSAGES, RESPONSES

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


#: SGLang keeps seeds in 64 bits with a sign and refuses others, so that every lane does.
_Seed = Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_STOPS = {"type": "array", "items": _TEXT, "maxItems": _MAX_STOPS}
_PROMPTS = [_TEXT, _IDS, *({"type": "array", "items": one, "minItems": 1} for one in (_TEXT, _IDS))]
_Stop = Annotated[
    Any,
    AfterValidator(lambda stop: stop if stop is None else _check_stop(stop)),
    WithJsonSchema({"anyOf": [_TEXT, _STOPS, {"type": "null"}]}),
]
_TopK = Annotated[
    StrictInt,
    AfterValidator(_check_top_k),
    WithJsonSchema({"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]}),
]
_Fraction = Annotated[StrictFloat, Field(ge=0, le=1)]


class _Sampling(_Open):
    """What every route that samples has. Null means absent, as in OpenAI's API."""

    temperature: Annotated[StrictFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[StrictFloat, Field(gt=0, le=1)] | None = None
    top_k: _TopK | None = None


class _Request(_Open):
    """What every route has besides."""

    model: StrictStr | None = None
    stream: StrictBool | None = None
    outrider: Hints | None = None

    @property
    def num_choices(self) -> int:
        return 1

    def for_policy(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The body as the policy reads it: its text as `messages` or `prompt`, OpenAI's names, all at the top."""
        return body


class _Generation(_Sampling, _Request):
    """What OpenAI's completions share."""

    min_p: _Fraction | None = None
    max_tokens: _Count | None = None
    stop: _Stop = None
    stream_options: dict[str, Any] | None = None
    seed: _Seed | None = None
    n: _Count | None = None
    custom_params: dict[str, Any] | None = None


class ChatBody(_Generation):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: _Count | None = None

    @property
    def num_choices(self) -> int:
        return self.n or 1


class CompletionBody(_Generation):
    """`POST /v1/completions`."""

    prompt: Annotated[Any, AfterValidator(_check_prompt), WithJsonSchema({"anyOf": _PROMPTS})]

    @property
    def num_choices(self) -> int:
        prompts = self.prompt
        is_batch = isinstance(prompts, list) and not isinstance(prompts[0], int)
        return (self.n or 1) * (len(prompts) if is_batch else 1)


class _Params(_Sampling):
    """`sampling_params` of `/generate`."""

    min_p: _Fraction | None = None
    max_new_tokens: _Count | None = None
    stop: _Stop = None
    sampling_seed: _Seed | None = None
    n: _Count | None = None
    custom_params: dict[str, Any] | None = None


class GenerateBody(_Request):
    """`POST /generate`: one prompt or a list of them; what is neither text nor ids is the lane's business."""

    text: StrictStr | list[StrictStr] | None = None
    input_ids: list[Any] | None = None
    sampling_params: _Params | None = None

    @property
    def num_choices(self) -> int:
        prompts = self.text if self.input_ids is None else self.input_ids
        is_batch = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
        params = self.sampling_params
        return ((params and params.n) or 1) * (len(prompts or ()) if is_batch else 1)

    def for_policy(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        params = body.get("sampling_params") or {}
        prompt = body.get("text") if self.input_ids is None else self.input_ids
        return {
            **body,
            **params,
            "prompt": prompt,
            "temperature": params.get("temperature"),
            "seed": params.get("sampling_seed"),
            "max_tokens": params.get("max_new_tokens"),
            "logprobs": body.get("return_logprob"),
        }


class ResponsesBody(_Sampling, _Request):
    """`POST /v1/responses`. What SGLang would drop there without a word is refused."""

    input: Annotated[StrictStr, Field(min_length=1)] | Annotated[list[Any], Field(min_length=1)]
    instructions: StrictStr | None = None
    max_output_tokens: _Count | None = None
    min_p: _Fraction | None = None
    stop: _Stop = None
    background: StrictBool | None = None
    store: StrictBool | None = None
    previous_response_id: StrictStr | None = None
    seed: None = None
    n: None = None
    custom_params: None = None

    def for_policy(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        said = self.input if isinstance(self.input, list) else [{"role": "user", "content": self.input}]
        messages = [{"role": "system", "content": self.instructions}, *said]
        return {**body, "messages": messages, "max_tokens": self.max_output_tokens}


class MessagesBody(_Sampling, _Request):
    """`POST /v1/messages`. What SGLang would drop there without a word is refused."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    system: StrictStr | list[Any] | None = None
    max_tokens: _Count
    stop_sequences: list[StrictStr] | None = None
    min_p: None = None
    seed: None = None
    n: None = None
    stop: None = None
    frequency_penalty: None = None
    presence_penalty: None = None
    repetition_penalty: None = None
    custom_params: None = None

    def for_policy(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**body, "messages": [{"role": "system", "content": self.system}, *body["messages"]]}


#: pydantic's names for the members of the unions above, which it puts into locations.
_UNION_NAMES = frozenset({"str", "list[any]", "list[str]", "constrained-str"})
#: Where pydantic speaks of Python rather than of JSON.
_MESSAGES = {
    "dict_type": "expected an object",
    "extra_forbidden": "unknown key",
    "missing": "is required",
    "model_type": "expected an object",
    "none_required": "is not carried by this route",
    "too_short": "must not be empty",
}

Body = ChatBody | CompletionBody | GenerateBody | ResponsesBody | MessagesBody

#: Route -> what its bodies are.
ROUTES: Mapping[str, type[Body]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    GENERATE: GenerateBody,
    RESPONSES: ResponsesBody,
    MESSAGES: MessagesBody,
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body that passed: as plain JSON for those who look further, and as checked fields."""

    body: Mapping[str, Any]
    fields: Body


def parse_body(route: str, raw: bytes) -> Parsed:
    """InvalidRequest names the field that is wrong, `body` for a body that is no JSON object."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"body is not valid JSON: {error}", param="body") from error
    if not isinstance(body, dict):
        raise InvalidRequest("body must be a JSON object", param="body")
    try:
        return Parsed(body, ROUTES[route].model_validate(body))
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
