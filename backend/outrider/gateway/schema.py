"""Checks request bodies: the fields we know have the right types and ranges, all others pass untouched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, NotRequired

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictStr, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from outrider.core import Hints
from outrider.errors import InvalidRequest
from outrider.gateway.values import Count, CustomParams, Fraction, Prompt, Seed, Stop, TopK
from outrider.runtimes.dialects import GENERATE, MESSAGES, RESPONSES


class _Open(BaseModel):
    """Unknown fields are the lane's business."""

    model_config = ConfigDict(extra="allow")


# A dictionary stays one: agents send hundreds of messages, and an object of each would take twice as long.
class _Message(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    role: StrictStr
    content: NotRequired[StrictStr | list[Any] | None]


class _Sampling(_Open):
    """What every route that samples has. Null means absent, as in OpenAI's API."""

    temperature: Annotated[StrictFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[StrictFloat, Field(gt=0, le=1)] | None = None
    top_k: TopK | None = None


class _Request(_Open):
    """What every route has besides."""

    model: StrictStr | None = None
    stream: StrictBool | None = None
    outrider: Hints | None = None

    @property
    def num_choices(self) -> int:
        return 1

    def for_policy(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The body as the policy reads it: its text as `messages` or `prompt`, OpenAI's names, all at the top, beside
        every name that it has."""
        return body


class _Generation(_Sampling, _Request):
    """What OpenAI's completions share."""

    min_p: Fraction | None = None
    max_tokens: Count | None = None
    stop: Stop = None
    stream_options: dict[str, Any] | None = None
    seed: Seed | None = None
    n: Count | None = None
    custom_params: CustomParams | None = None


class ChatBody(_Generation):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None

    @property
    def num_choices(self) -> int:
        """Answers asked for."""
        return self.n or 1


class CompletionBody(_Generation):
    """`POST /v1/completions`."""

    prompt: Prompt

    @property
    def num_choices(self) -> int:
        """Answers asked for, over all prompts."""
        prompts = self.prompt
        is_batch = isinstance(prompts, list) and not isinstance(prompts[0], int)
        return (self.n or 1) * (len(prompts) if is_batch else 1)


class _Params(_Sampling):
    """`sampling_params` of `/generate`."""

    min_p: Fraction | None = None
    max_new_tokens: Count | None = None
    stop: Stop = None
    sampling_seed: Seed | None = None
    n: Count | None = None
    custom_params: CustomParams | None = None


class GenerateBody(_Request):
    """`POST /generate`: one prompt or a list of them; what is neither text nor ids is the lane's business."""

    text: StrictStr | list[StrictStr] | None = None
    input_ids: list[Any] | None = None
    sampling_params: _Params | None = None
    #: SGLang would go on there when its client has left.
    background: None = None

    @property
    def num_choices(self) -> int:
        """Answers asked for, over all prompts."""
        prompts = self.text if self.input_ids is None else self.input_ids
        is_batch = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
        params = self.sampling_params
        return ((params and params.n) or 1) * (len(prompts or ()) if is_batch else 1)

    def for_policy(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The body with `sampling_params` and the prompt where the policy looks for them."""
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


class _TextConfig(_Open):
    format: dict[str, Any] | None = None


class ResponsesBody(_Sampling, _Request):
    """`POST /v1/responses`. What SGLang would drop there without a word is refused."""

    input: Annotated[StrictStr, Field(min_length=1)] | Annotated[list[Any], Field(min_length=1)]
    instructions: StrictStr | None = None
    max_output_tokens: Count | None = None
    min_p: Fraction | None = None
    stop: Stop = None
    background: StrictBool | None = None
    store: StrictBool | None = None
    previous_response_id: StrictStr | None = None
    text: _TextConfig | None = None
    tools: list[dict[str, Any]] | None = None
    seed: None = None
    n: None = None
    custom_params: None = None

    def for_policy(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The body as a conversation, where the policy looks for it."""
        said = self.input if isinstance(self.input, list) else [{"role": "user", "content": self.input}]
        messages = [{"role": "system", "content": self.instructions}, *map(_with_images, said)]
        form = self.text and self.text.format
        return {**body, "messages": messages, "max_tokens": self.max_output_tokens, "response_format": form}


class MessagesBody(_Sampling, _Request):
    """`POST /v1/messages`. What SGLang would drop there without a word is refused."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    system: StrictStr | list[Any] | None = None
    max_tokens: Count
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
        """The body as a conversation, where the policy looks for it."""
        said = map(_with_images, body["messages"])
        return {**body, "messages": [{"role": "system", "content": self.system}, *said]}


def _with_images(message: Any) -> Any:
    """With images as chat has them, those in results of tools too."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    nested = [part.get("content") for part in content if isinstance(part, Mapping)]
    parts = [*content, *chain.from_iterable(one for one in nested if isinstance(one, list))]
    images = [part for part in parts if isinstance(part, Mapping) and part.get("type") in _IMAGES]
    return {**message, "content": [*content, *({"type": "image_url"} for _ in images)]}


#: Of responses and messages.
_IMAGES = ("input_image", "image")


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


@dataclass(slots=True)
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
