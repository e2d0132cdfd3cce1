"""The body of a chat request: what the caller said, checked as far as it is ours to check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from pydantic import ValidationError

from outrider.core import Hints, Task


class HintFields(TypedDict, total=False):
    """The fields of `Hints` as keywords of a call."""

    task: Task | None
    drafter: Literal["ngram", "suffix", "prediction", "draft_model", "layer_skip", "off"] | None
    k: int | None
    off: bool
    verbose: bool


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat request before it has a model."""

    messages: str | Sequence[Mapping[str, Any]]
    hints: Hints | None
    temperature: float | None
    max_tokens: int | None
    extra_body: Mapping[str, Any] | None

    def body(self, *, is_stream: bool) -> dict[str, Any]:
        """The JSON object to send. TypeError for messages of a wrong kind, ValueError for a key of `extra_body`."""
        body: dict[str, Any] = {"messages": _messages(self.messages), "stream": is_stream}
        optional = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        body |= {key: value for key, value in optional.items() if value is not None}
        if self.hints is not None and (fields := self.hints.model_dump(exclude_defaults=True)):
            body["outrider"] = fields
        extra = dict(self.extra_body or {})
        if clashes := sorted((body.keys() | {"model"}) & extra.keys()):
            raise ValueError(f"extra_body: {clashes[0]!r} is set by an argument of the call")
        if extra.get("n", 1) != 1:
            raise ValueError("extra_body: n must be 1: a result holds one answer; send several requests instead")
        if is_stream:
            extra["stream_options"] = {"include_usage": True} | dict(extra.get("stream_options") or {})
        return body | extra


def _messages(messages: object) -> list[Any]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if isinstance(messages, list | tuple):
        return list(messages)
    raise TypeError(f"messages must be text or a list of messages, not {type(messages).__name__}")


def merged_hints(hints: Hints | None, fields: HintFields) -> Hints | None:
    """Hints given as an object or as keywords.

    TypeError for an unknown keyword or for both ways at once, ValueError (naming the field) for a wrong value.
    """
    if not fields:
        return hints
    if unknown := sorted(fields.keys() - Hints.model_fields.keys()):
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
    if hints is not None:
        raise TypeError(f"hints and {min(fields)!r} were both given")
    try:
        return Hints(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "hints"
        raise ValueError(f"{where}: {first['msg']} (found {first['input']!r})") from error
