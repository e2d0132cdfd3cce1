"""What a chat answer says, a chunk of a stream or a whole one alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from outrider.errors import LaneFailed
from outrider.runtimes.protocol import choices_of

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A part of one tool call."""

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """What one chunk adds to the first choice."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)
    finish_reason: str | None = None
    matched_stop: object = None
    usage: Mapping[str, Any] | None = None


def read_delta(chunk: Mapping[str, Any]) -> Delta:
    """Of a chunk, or of a whole completion as if it had come in one. LaneFailed for what is of the wrong type."""
    usage = chunk.get("usage")
    known = usage if isinstance(usage, Mapping) else None
    choices = choices_of(chunk)
    if not choices:
        return Delta(usage=known)
    choice = choices[0]
    said = _typed(choice, "delta", dict) or _typed(choice, "message", dict) or {}
    return Delta(
        reasoning=_typed(said, "reasoning_content", str) or "",
        content=_typed(said, "content", str) or "",
        calls=[_call(i, call) for i, call in enumerate(_typed(said, "tool_calls", list) or [])],
        finish_reason=_typed(choice, "finish_reason", str),
        matched_stop=choice.get("matched_stop"),
        usage=known,
    )


def _call(i: int, call: object) -> CallDelta:
    if not isinstance(call, dict):
        raise LaneFailed("the lane sent a tool call that is not an object")
    function = _typed(call, "function", dict) or {}
    index, arguments = _typed(call, "index", int), _typed(function, "arguments", str) or ""
    return CallDelta(i if index is None else index, _typed(call, "id", str), _typed(function, "name", str), arguments)


def _typed(value: Mapping[str, Any], name: str, kind: type[_T]) -> _T | None:
    """The member; None where it is null or missing."""
    found = value.get(name)
    if found is None or isinstance(found, kind):
        return found
    raise LaneFailed(f"the lane sent a chunk whose {name} is a {type(found).__name__}")


def count(usage: Mapping[str, Any], name: str, part: str | None = None) -> int:
    """A count of the usage, or of its details; 0 where it is not given."""
    found: object = usage.get(name)
    if part is not None:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, int) else 0
