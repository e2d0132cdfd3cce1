"""Calls of tools, read from an answer's text as it comes.

One format is known, in which Hermes, Qwen and others were trained: `<tool_call>{"name": ..., "arguments": {...}}
</tool_call>`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic_core import from_json

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool by the model."""

    name: str
    arguments: str
    """A JSON object."""
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def to_wire(self, index: int | None = None) -> dict[str, Any]:
        """`index` is its place among the answer's calls, which streams tell."""
        place = {} if index is None else {"index": index}
        return {
            **place,
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


class CallReader:
    """Takes an answer's text piece by piece, and tells calls from what is to be shown.

    A call is JSON between the marks; whatever stands inside its strings belongs to it. A mark that begins no call is
    text like any other. Blank text behind a call separates it from the next, or from the end, and is not shown.
    """

    def __init__(self, *, is_single: bool = False) -> None:
        """With `is_single` the first call ends the answer: what follows it is dropped."""
        self._is_single = is_single
        self._held = ""
        self._num_read = 0
        """Characters behind the first held mark in which every end mark is known to stand inside a string."""
        self._has_calls = False

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows can be shown or be a call."""
        return self._is_single and self._has_calls

    def append(self, text: str, *, is_last: bool = False) -> tuple[str, list[Call]]:
        """Text that may be shown now, and calls that are complete now; with the last piece nothing is held back."""
        self._held += text
        shown, calls = "", list[Call]()
        while not self.is_over and (at := self._held.find(BEGIN)) >= 0:
            decided = self._decide(at + len(BEGIN), is_last)
            if decided is None:
                break
            call, end = decided
            if call is None:
                shown += self._held[:end]
            else:
                shown += self._held[: self._edge(at)]
                self._has_calls = True
                calls.append(call)
            self._held, self._num_read = self._held[end:], 0
        if self.is_over:
            self._held = ""
        cut = self._edge(self._num_undisputed(is_last))
        shown, self._held = shown + self._held[:cut], "" if is_last else self._held[cut:]
        return shown, calls

    def _decide(self, start: int, is_last: bool) -> tuple[Call | None, int] | None:
        """The call that begins behind a mark and the end of its other mark; no call and the place behind the mark.

        None when that depends on what follows.
        """
        body = self._held[start:]
        if (begun := body.lstrip()) and not begun.startswith("{"):
            return None, start
        while (end := body.find(END, self._num_read)) >= 0:
            self._num_read = end + len(END)
            if (call := _read_call(body[:end])) is not None:
                return call, start + self._num_read
            if not _ends_in_string(body[: self._num_read]):
                return None, start
        if not is_last:
            return None
        call = _read_call(body)
        return call, start if call is None else len(self._held)

    def _num_undisputed(self, is_last: bool) -> int:
        """Length of the held text before what is, or may become, a mark."""
        at = self._held.find(BEGIN)
        if at >= 0 or is_last:
            return at if at >= 0 else len(self._held)
        sizes = range(min(len(BEGIN) - 1, len(self._held)), 0, -1)
        return len(self._held) - next((size for size in sizes if self._held.endswith(BEGIN[:size])), 0)

    def _edge(self, cut: int) -> int:
        """Where the shown text before `cut` ends: behind a call, before the blanks that may lead to another."""
        return len(self._held[:cut].rstrip()) if self._has_calls else cut


def _read_call(text: str) -> Call | None:
    try:
        call = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not (isinstance(call, dict) and isinstance(call.get("name"), str)):
        return None
    arguments = call.get("arguments", {})
    return Call(call["name"], orjson.dumps(arguments).decode()) if isinstance(arguments, dict) else None


def _ends_in_string(text: str) -> bool:
    """Whether this is the beginning of good JSON, cut inside a string."""
    try:
        from_json(text)
    except ValueError as error:
        return str(error).startswith("EOF while parsing a string")
    return False
