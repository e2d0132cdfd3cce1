"""What a chat answer says, a chunk of a stream or a whole one alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider.runtimes.protocol import choices_of


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
    """Of a chunk, or of a whole completion as if it had come in one."""
    usage = chunk.get("usage")
    known = usage if isinstance(usage, Mapping) else None
    choices = choices_of(chunk)
    if not choices:
        return Delta(usage=known)
    choice = choices[0]
    said = choice.get("delta") or choice.get("message") or {}
    return Delta(
        reasoning=said.get("reasoning_content") or "",
        content=said.get("content") or "",
        calls=[_call(i, call) for i, call in enumerate(said.get("tool_calls") or [])],
        finish_reason=choice.get("finish_reason"),
        matched_stop=choice.get("matched_stop"),
        usage=known,
    )


def _call(i: int, call: Mapping[str, Any]) -> CallDelta:
    function = call.get("function") or {}
    index = call.get("index")
    return CallDelta(
        i if index is None else index, call.get("id"), function.get("name"), function.get("arguments") or ""
    )


def count(usage: Mapping[str, Any], name: str, part: str | None = None) -> int:
    """A count of the usage, or of its details; 0 where it is not given."""
    found: object = usage.get(name)
    if part is not None:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, int) else 0
