"""Request bodies of the engine's routes, checked field by field; knows no engine.

What the engine does not do, or does not know, is refused by name; what has no bearing on the text is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from outrider.engine.grammar import GrammarKind
from outrider.engine.logprobs import MAX_TOP_LOGPROBS
from outrider.errors import InvalidRequest
from outrider.speculation.target import SamplingLaw

#: Fields that are known and would change the answer, with the values that ask for nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,), "echo": (False,), "suffix": ("",), "logprob_start_len": (-1,),
    "token_ids_logprob": (),
    "min_tokens": (0,), "min_new_tokens": (0,), "stop_regex": ("", []), "tools": ([],), "functions": ([],),
    "tool_choice": ("none", "auto"), "function_call": ("none", "auto"),
    "structural_tag": (), "modalities": (["text"],),
    "audio": (), "web_search_options": (), "lora_path": (), "custom_logit_processor": (), "input_embeds": (),
    "image_data": ([],), "session_params": (), "chat_template_kwargs": ({},),
    "return_token_ids": (False,), "return_hidden_states": (False,), "return_meta_info": (False,), "beam_width": (1,),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,), "no_stop_trim": (False,),
    "stream_interval": (1,), "continue_final_message": (False,), "add_generation_prompt": (True,),
}  # fmt: skip

#: Fields that cannot change the text of this engine: labels.
_WITHOUT_EFFECT = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls",
    "session_id", "custom_labels", "separate_reasoning", "stream_reasoning",
    "return_cached_tokens_details",
})  # fmt: skip

BodyT = TypeVar("BodyT", bound="RequestObject")
_FIELD = re.compile(r"(?!(str|int|list|dict)$)[a-z_]+")
_MAX_STOPS = 16
#: Choices that one request may ask for.
MAX_CHOICES = 16
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
#: SGLang keeps seeds in 64 bits with a sign and refuses others.
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


class RequestObject(BaseModel):
    """A JSON object of a request: unknown fields are kept for `refuse`, null is the same as absent."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class SamplingFields(RequestObject):
    """Sampling fields that all routes share."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    stop: str | list[Annotated[str, Field(min_length=1)]] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    logit_bias: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] = {}
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    custom_params: dict[str, Any] = {}

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, value: str | list[str]) -> list[str]:
        stops = [value] if isinstance(value, str) and value else list(value)
        if len(stops) > _MAX_STOPS:
            raise ValueError(f"at most {_MAX_STOPS} stop strings are allowed")
        return stops

    @property
    def law(self) -> SamplingLaw:
        """The sampling law that the fields ask for."""
        # SGLang's own spelling of "all tokens" is -1.
        return SamplingLaw(
            self.temperature, max(self.top_k, 0), self.top_p, self.min_p,
            self.repetition_penalty, self.frequency_penalty, self.presence_penalty,
            tuple(sorted((int(token), bias) for token, bias in self.logit_bias.items())),
        )  # fmt: skip

    @property
    def grammars(self) -> list[GrammarField]:
        """Every grammar that the fields name; a request may have one."""
        texts: tuple[tuple[GrammarKind, str, str | None], ...] = (
            ("json", "json_schema", self.json_schema), ("regex", "regex", self.regex), ("ebnf", "ebnf", self.ebnf),
        )  # fmt: skip
        return [GrammarField(kind, text, name) for kind, name, text in texts if text is not None]


@dataclass(frozen=True, slots=True)
class GrammarField:
    """A grammar of a request, and the field that holds it."""

    kind: GrammarKind
    text: str
    param: str


class JsonSchema(RequestObject):
    """`strict` makes no difference: every answer follows its schema."""

    schema_: dict[str, Any] | bool = Field(alias="schema")
    name: str = ""
    description: str = ""
    strict: bool = True


class ResponseFormat(RequestObject):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _complete(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema is needed by the type json_schema and by no other")
        return self


class StreamOptions(RequestObject):
    """OpenAI's `stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class TextPart(RequestObject):
    """A part of a message that is text."""

    type: Literal["text"]
    text: str


def joined(content: str | list[TextPart]) -> str:
    """The text of a message's content, parts put together."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Prediction(RequestObject):
    """What the caller expects as the answer, as OpenAI's predicted outputs give it."""

    type: Literal["content"]
    content: str | list[TextPart]


class CacheFields(RequestObject):
    """Who shares cached beginnings with whom; both of SGLang's fields isolate."""

    cache_salt: str = ""
    extra_key: str = ""

    @property
    def salt(self) -> str:
        """Empty when both are; the length keeps two pairs from reading the same."""
        either = self.cache_salt + self.extra_key
        return f"{len(self.cache_salt)}:{either}" if either else ""


class OpenAIBody(SamplingFields, CacheFields):
    """What chat and completions have in common."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    seed: Seed | None = None
    rid: str | None = None
    return_spec_tokens_details: bool = False
    response_format: ResponseFormat = ResponseFormat()
    prediction: Prediction | None = None

    @property
    def grammars(self) -> list[GrammarField]:
        """All fields that restrict the form, `response_format` included."""
        found = super().grammars
        if self.response_format.json_schema is not None:
            schema = orjson.dumps(self.response_format.json_schema.schema_)
            found.append(GrammarField("json", schema.decode(), "response_format.json_schema.schema"))
        elif self.response_format.type == "json_object":
            found.append(GrammarField("json", '{"type": "object"}', "response_format"))
        return found


class CompletionBody(OpenAIBody):
    """/v1/completions"""

    prompt: str | list[int] | list[str]
    max_tokens: Annotated[int, Field(ge=1)] = 16
    logprobs: TopLogprobs | None = None


class SamplingParams(SamplingFields):
    """`sampling_params` of /generate"""

    max_new_tokens: Annotated[int, Field(ge=1)] = 128
    sampling_seed: Seed | None = None


class GenerateBody(CacheFields):
    """/generate"""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False
    rid: str | None = None
    return_logprob: bool = False
    top_logprobs_num: TopLogprobs = 0
    return_text_in_logprobs: bool = False


def refuse(body: RequestObject, prefix: str = "") -> None:
    """InvalidRequest for a field that would change the answer, or might: one that nobody here knows."""
    for name, value in (body.model_extra or {}).items():
        asks_nothing = any(value == one and type(value) is type(one) for one in _NEUTRAL.get(name, ()))
        if asks_nothing or name in _WITHOUT_EFFECT:
            continue
        near = [] if name in _NEUTRAL else get_close_matches(name, type(body).model_fields, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidRequest(f"{prefix}{name} is not supported by the embedded engine{hint}", param=f"{prefix}{name}")


def validated(kind: type[BodyT], data: object) -> BodyT:
    """The body, read; InvalidRequest names the first field that is wrong."""
    if not isinstance(data, dict):
        raise InvalidRequest("the body must be a JSON object", param="body")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        # Of a union's branches, the one that went deepest is the one that the caller meant.
        first = max(error.errors(include_url=False), key=lambda problem: len(problem["loc"]))
        # Branch names of unions are ours, not the caller's: keep field names and list positions.
        parts = [part for part in first["loc"] if isinstance(part, int) or _FIELD.fullmatch(part)]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".") or "body"
        message = first["msg"].removeprefix("Value error, ")
        raise InvalidRequest(f"{path}: {message[:1].lower()}{message[1:]}", param=path) from error
