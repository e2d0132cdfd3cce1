"""Values of request bodies: their types and ranges, for pydantic and as JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictFloat, StrictInt, WithJsonSchema

_MAX_STOPS = 16


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


def _check_custom_params(params: dict[str, Any]) -> dict[str, Any]:
    if "outrider" in params:
        raise ValueError("must not hold outrider, where a lane finds its plan; wishes stand in the field outrider")
    return params


def _check_top_k(value: int) -> int:
    if value != -1 and value < 1:
        raise ValueError("expected -1 (off) or at least 1")
    return value


Count = Annotated[StrictInt, Field(ge=1)]
#: SGLang keeps seeds in 64 bits with a sign and refuses others, so that every lane does.
Seed = Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_STOPS = {"type": "array", "items": _TEXT, "maxItems": _MAX_STOPS}
_PROMPTS = [_TEXT, _IDS, *({"type": "array", "items": one, "minItems": 1} for one in (_TEXT, _IDS))]
Stop = Annotated[
    Any,
    AfterValidator(lambda stop: stop if stop is None else _check_stop(stop)),
    WithJsonSchema({"anyOf": [_TEXT, _STOPS, {"type": "null"}]}),
]
TopK = Annotated[
    StrictInt,
    AfterValidator(_check_top_k),
    WithJsonSchema({"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]}),
]
CustomParams = Annotated[dict[str, Any], AfterValidator(_check_custom_params)]
Fraction = Annotated[StrictFloat, Field(ge=0, le=1)]
Prompt = Annotated[Any, AfterValidator(_check_prompt), WithJsonSchema({"anyOf": _PROMPTS})]
