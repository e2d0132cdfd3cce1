"""Request bodies of the engine's routes: parsed, checked field by field, turned into a GenerateRequest.

What the engine does not do is refused by name; what has no bearing on the text is accepted; what nobody here knows is
let through, as SGLang does, and reported as ignored.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from outrider.engine.engine import Engine
from outrider.engine.sequence import GenerateRequest
from outrider.errors import ContextLengthExceeded, InvalidRequest
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.target import SamplingLaw

#: Fields that would change the answer and are not implemented, with the values that ask for nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "suffix": ("",), "logprobs": (False,), "top_logprobs": (0,),
    "frequency_penalty": (0,), "presence_penalty": (0,), "repetition_penalty": (1,), "logit_bias": ({},),
    "min_tokens": (0,), "min_new_tokens": (0,), "stop_regex": ("", []), "tools": ([],), "functions": ([],),
    "tool_choice": ("none", "auto"), "function_call": ("none", "auto"), "response_format": ({"type": "text"},),
    "json_schema": (), "regex": (), "ebnf": (), "structural_tag": (), "modalities": (["text"],),
    "audio": (), "web_search_options": (), "lora_path": (), "custom_logit_processor": (), "input_embeds": (),
    "image_data": ([],), "session_params": (), "chat_template_kwargs": ({},), "return_logprob": (False,),
    "return_token_ids": (False,), "return_hidden_states": (False,), "return_meta_info": (False,), "beam_width": (1,),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,), "no_stop_trim": (False,),
    "stream_interval": (1,), "continue_final_message": (False,), "add_generation_prompt": (True,),
}  # fmt: skip

#: Fields that cannot change the text of this engine: labels.
_WITHOUT_EFFECT = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
    "session_id", "custom_labels", "separate_reasoning", "stream_reasoning",
    "return_cached_tokens_details",
})  # fmt: skip

_BodyT = TypeVar("_BodyT", bound="_Body")
_FIELD = re.compile(r"(?!(str|int|list|dict)$)[a-z_]+")
_RID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MAX_STOPS = 16


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class SamplingFields(_Body):
    """Sampling fields that all routes share."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    stop: str | list[Annotated[str, Field(min_length=1)]] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
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
        # SGLang's own spelling of "all tokens" is -1.
        return SamplingLaw(self.temperature, max(self.top_k, 0), self.top_p, self.min_p)


class TextPart(_Body):
    type: Literal["text"]
    text: str


def _joined(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Prediction(_Body):
    """What the caller expects as the answer, as OpenAI's predicted outputs give it."""

    type: Literal["content"]
    content: str | list[TextPart]


class StreamOptions(_Body):
    include_usage: bool = False


class _CacheFields(_Body):
    """Who shares cached beginnings with whom; both of SGLang's fields isolate."""

    cache_salt: str = ""
    extra_key: str = ""

    @property
    def salt(self) -> str:
        """Empty when both are; the length keeps two pairs from reading the same."""
        either = self.cache_salt + self.extra_key
        return f"{len(self.cache_salt)}:{either}" if either else ""


class _OpenAIBody(SamplingFields, _CacheFields):
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    seed: int | None = None
    rid: str | None = None
    return_spec_tokens_details: bool = False
    prediction: Prediction | None = None


class Message(_Body):
    """One message; content that is not text is refused, and so are tool calls, which the templates would drop."""

    role: Annotated[str, Field(min_length=1)]
    content: str | list[TextPart] = ""
    tool_calls: Annotated[list[Any], Field(max_length=0)] = []

    def for_template(self) -> dict[str, str]:
        return {"role": self.role, "content": _joined(self.content)}


class ChatBody(_OpenAIBody):
    """/v1/chat/completions"""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None


class CompletionBody(_OpenAIBody):
    """/v1/completions"""

    prompt: str | list[int] | list[str]
    max_tokens: Annotated[int, Field(ge=1)] = 16


class SamplingParams(SamplingFields):
    """`sampling_params` of /generate; SGLang refuses unknown keys here, and so does this engine."""

    max_new_tokens: Annotated[int, Field(ge=1)] = 128
    sampling_seed: int | None = None

    @model_validator(mode="after")
    def _known(self) -> SamplingParams:
        unknown = sorted(set(self.model_extra or ()) - set(_NEUTRAL))
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r}")
        return self


class GenerateBody(_CacheFields):
    """/generate"""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False
    rid: str | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request ready to run, and how its answer is to be written."""

    request: GenerateRequest
    is_stream: bool = False
    has_usage_chunk: bool = False
    has_spec_details: bool = False
    ignored: list[str] = field(default_factory=list)


def parse_chat(data: object, engine: Engine) -> Parsed:
    body = _validated(ChatBody, data)
    prompt_ids = engine.tokenizer.encode_chat([message.for_template() for message in body.messages])
    return _openai(body, prompt_ids, body.max_completion_tokens or body.max_tokens, engine, "messages")


def parse_completion(data: object, engine: Engine) -> Parsed:
    body = _validated(CompletionBody, data)
    prompt: Any = body.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        if len(prompt) > 1:
            raise InvalidRequest("several prompts in one request are not supported", param="prompt")
        prompt = prompt[0]
    prompt_ids = engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    return _openai(body, prompt_ids, body.max_tokens, engine, "prompt")


def parse_generate(data: object, engine: Engine) -> Parsed:
    body = _validated(GenerateBody, data)
    if (body.text is None) == (body.input_ids is None):
        raise InvalidRequest("exactly one of text and input_ids is needed", param="text")
    params = body.sampling_params
    _refuse(params.model_extra, "sampling_params.")
    ignored = _refuse(body.model_extra)
    prompt_ids = engine.tokenizer.encode(body.text) if body.text is not None else body.input_ids or []
    where = "text" if body.text is not None else "input_ids"
    request = _request(params, prompt_ids, params.max_new_tokens, params.sampling_seed, body.rid, engine, where)
    request = replace(request, cache_salt=body.salt)
    engine.check(request, where)
    return Parsed(request, body.stream, has_spec_details=True, ignored=ignored)


def _openai(body: _OpenAIBody, prompt_ids: list[int], max_tokens: int | None, engine: Engine, where: str) -> Parsed:
    ignored = _refuse(body.model_extra)
    request = _request(body, prompt_ids, max_tokens, body.seed, body.rid, engine, where)
    request = replace(request, cache_salt=body.salt)
    if body.prediction is not None and request.plan.drafter == "prediction":
        prediction = engine.tokenizer.encode(_joined(body.prediction.content), add_special_tokens=False)
        request = replace(request, prediction_ids=tuple(prediction))
    elif body.prediction is not None:
        ignored.append("prediction")
    engine.check(request, where)
    options = body.stream_options
    return Parsed(request, body.stream, options.include_usage, body.return_spec_tokens_details, ignored)


def _request(
    fields: SamplingFields,
    prompt_ids: list[int],
    max_tokens: int | None,
    seed: int | None,
    rid: str | None,
    engine: Engine,
    where: str,
) -> GenerateRequest:
    _check_prompt(prompt_ids, engine, where)
    if rid is not None and not _RID.fullmatch(rid):
        raise InvalidRequest("rid must be 1 to 128 letters, digits, dots, underscores or dashes", param="rid")
    eos = () if fields.ignore_eos else engine.model.config.eos_token_ids
    return GenerateRequest(
        rid=rid or uuid.uuid4().hex,
        prompt_ids=tuple(prompt_ids),
        law=fields.law,
        max_new_tokens=max_tokens or engine.context_length - len(prompt_ids),
        plan=_plan(fields.custom_params),
        seed=secrets.randbits(64) if seed is None else seed,
        is_seeded=seed is not None,
        stop=tuple(fields.stop),
        stop_token_ids=frozenset((*eos, *fields.stop_token_ids)),
    )


def _check_prompt(prompt_ids: list[int], engine: Engine, where: str) -> None:
    if not prompt_ids:
        raise InvalidRequest("the prompt is empty", param=where)
    vocab = engine.model.config.vocab_size
    if not all(0 <= token < vocab for token in prompt_ids):
        raise InvalidRequest(f"token ids must be between 0 and {vocab - 1}", param=where)
    if len(prompt_ids) >= engine.context_length:
        raise ContextLengthExceeded(
            f"the prompt has {len(prompt_ids)} tokens, the context holds {engine.context_length}", param=where
        )


def _plan(custom_params: Mapping[str, Any]) -> Plan:
    wire = custom_params.get("outrider")
    if wire is None:
        return PLAN_OFF
    try:
        if not isinstance(wire, Mapping):
            raise ValueError("must be an object with drafter and k")
        return Plan.from_wire(wire)
    except ValueError as error:
        raise InvalidRequest(str(error), param="custom_params.outrider") from error


def _refuse(extra: Mapping[str, Any] | None, prefix: str = "") -> list[str]:
    """Names of fields that are let through and ignored; InvalidRequest for one that would change the answer."""
    ignored = []
    for name, value in (extra or {}).items():
        if name in _NEUTRAL:
            if not any(value == neutral and type(value) is type(neutral) for neutral in _NEUTRAL[name]):
                raise InvalidRequest(
                    f"{prefix}{name} is not supported by the embedded engine", param=f"{prefix}{name}"
                )
        elif name not in _WITHOUT_EFFECT:
            ignored.append(f"{prefix}{name}")
    return ignored


def _validated(kind: type[_BodyT], data: object) -> _BodyT:
    if not isinstance(data, dict):
        raise InvalidRequest("the body must be a JSON object", param="body")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        # Of a union's branches, the one that went deepest is the one that the caller meant.
        first = max(error.errors(include_url=False), key=lambda problem: len(problem["loc"]))
        # Branch names of unions are ours, not the caller's: keep field names and list positions.
        parts = [str(part) for part in first["loc"] if isinstance(part, int) or _FIELD.fullmatch(part)]
        raise InvalidRequest(first["msg"], param=".".join(parts) or "body") from error
