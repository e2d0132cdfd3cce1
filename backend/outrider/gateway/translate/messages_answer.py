"""From chunks of chat to the events and the object of `/v1/messages`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import orjson

from outrider.gateway.translate.delta import CallDelta, Delta, count

Event = dict[str, Any]

_REASONS: Mapping[str, str] = {
    "stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal",
}  # fmt: skip
#: What a block of text says of its sources, what a call says of who made it, what thinking is signed with.
_FIXED: Mapping[str, Mapping[str, Any]] = {
    "text": {"citations": None}, "tool_use": {"caller": {"type": "direct"}}, "thinking": {"signature": ""},
}  # fmt: skip
#: Block -> its delta and where that holds the text.
_DELTAS: Mapping[str, tuple[str, str]] = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}


#: How it ended, null until then.
_END = ("stop_reason", "stop_sequence", "stop_details")
_REFUSAL = {"type": "refusal", "category": None, "explanation": None}
#: Of the usage; the rest is told at the beginning.
_TOLD_AT_END = (
    "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens",
    "output_tokens_details", "server_tool_use",
)  # fmt: skip


@dataclass(slots=True)
class _Block:
    """One block of the content."""

    kind: str
    text: str = ""
    """Of a call, its input as JSON."""
    call_id: str = ""
    name: str = ""

    def empty(self) -> dict[str, Any]:
        fixed = {"type": self.kind, **_FIXED[self.kind]}
        if self.kind == "tool_use":
            return fixed | {"id": self.call_id, "name": self.name, "input": {}}
        return fixed | {_DELTAS[self.kind][1]: ""}

    def to_wire(self) -> dict[str, Any]:
        if self.kind != "tool_use":
            return self.empty() | {_DELTAS[self.kind][1]: self.text}
        return self.empty() | {"input": _parsed(self.text)}


@dataclass(slots=True)
class MessagesAnswer:
    """One message as it grows. Blocks do not overlap: a second call waits until the first one is complete."""

    body: Mapping[str, Any]
    model: str | None
    id: str = field(default_factory=lambda: f"msg_{token_hex(16)}")
    _blocks: list[_Block] = field(default_factory=list)
    _is_open: bool = False
    """Whether the last block is."""
    _calls: dict[int, _Block] = field(default_factory=dict)
    """In the order of their beginnings; the first one is being told, the others wait."""
    _finish: str | None = None
    _matched: object = None
    _usage: Mapping[str, Any] = field(default_factory=dict)

    def begin(self) -> list[Event]:
        """The first event: the message, empty."""
        message = self.snapshot() | dict.fromkeys(_END)
        return [{"type": "message_start", "message": message}]

    def feed(self, delta: Delta) -> list[Event]:
        """The events of what is new."""
        events: list[Event] = []
        for kind, piece in (("thinking", delta.reasoning), ("text", delta.content)):
            if piece:
                if not self._is_open or self._blocks[-1].kind != kind:
                    events += self._open(_Block(kind))
                events.append(self._add(piece))
        for call in delta.calls:
            events += self._call(call)
        if delta.finish_reason is not None:
            self._finish, self._matched = delta.finish_reason, delta.matched_stop
        self._usage = delta.usage or self._usage
        return events

    def complete(self) -> list[Event]:
        """The chat is over: calls that waited are told, and the last block ends."""
        events: list[Event] = []
        for waiting in list(self._calls.values())[1:]:
            text, waiting.text = waiting.text, ""
            events += self._open(waiting)
            events += [self._add(text)] if text else []
        return events + self._close()

    def last(self) -> list[Event]:
        """The stream's last events, after `complete`."""
        whole = self.snapshot()
        delta = {name: whole[name] for name in (*_END, "container")}
        usage = {name: whole["usage"][name] for name in _TOLD_AT_END}
        return [
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]

    def snapshot(self) -> dict[str, Any]:
        """The message object."""
        is_ours = isinstance(self._matched, str) and self._matched in (self.body.get("stop_sequences") or ())
        reason = _REASONS.get(self._finish or "stop", "end_turn")
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.body.get("model") or self.model,
            "content": [block.to_wire() for block in self._blocks],
            "stop_reason": "stop_sequence" if is_ours and reason == "end_turn" else reason,
            "stop_sequence": self._matched if is_ours else None,
            "stop_details": _REFUSAL if reason == "refusal" else None,
            "container": None,
            "usage": _usage(self._usage),
        }

    def _open(self, block: _Block) -> list[Event]:
        closing = self._close()
        self._blocks.append(block)
        self._is_open = True
        index = len(self._blocks) - 1
        return [*closing, {"type": "content_block_start", "index": index, "content_block": block.empty()}]

    def _add(self, piece: str) -> Event:
        """To the last block."""
        block = self._blocks[-1]
        block.text += piece
        kind, name = _DELTAS[block.kind]
        delta = {"type": kind, name: piece}
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _close(self) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}]

    def _call(self, call: CallDelta) -> list[Event]:
        events: list[Event] = []
        block = self._calls.get(call.index)
        if block is None:
            block = _Block("tool_use", call_id=call.id or f"toolu_{token_hex(12)}", name=call.name or "")
            self._calls[call.index] = block
            if len(self._calls) == 1:
                events += self._open(block)
        if not call.arguments:
            return events
        if self._blocks and self._blocks[-1] is block:
            return [*events, self._add(call.arguments)]
        block.text += call.arguments
        return events


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Null is what nobody counts here, or nobody has told."""
    cached = count(usage, "prompt_tokens_details", "cached_tokens")
    thought = count(usage, "completion_tokens_details", "reasoning_tokens") or count(usage, "reasoning_tokens")
    return {
        "input_tokens": count(usage, "prompt_tokens") - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "cache_creation": None,
        "output_tokens": count(usage, "completion_tokens"),
        "output_tokens_details": {"thinking_tokens": thought} if thought else None,
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }


def _parsed(arguments: str) -> Any:
    """The input as an object; what the model wrote and is none stands as it is, so that nothing is lost."""
    try:
        return orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return arguments
