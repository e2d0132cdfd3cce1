"""From chunks of chat to the events and the object of `/v1/responses`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Literal

from outrider.gateway.translate.delta import CallDelta, Delta, count
from outrider.gateway.translate.responses_request import DEFAULTS

Event = dict[str, Any]

_Kind = Literal["reasoning", "message", "function_call"]
_PREFIX: Mapping[_Kind, str] = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}
#: Chat's reasons for an end that is not the answer's own.
_CUT: Mapping[str, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
#: What the answer repeats of the law, and what holds where the request is silent.
_SAMPLING: Mapping[str, float] = {**DEFAULTS, "presence_penalty": 0.0, "frequency_penalty": 0.0}
#: What an answer says of a tool where the request is silent.
_TOOL: Mapping[str, Any] = {"description": None, "parameters": None, "strict": None}


@dataclass(slots=True)
class _Item:
    """One item of the output."""

    kind: _Kind
    id: str
    index: int
    text: str = ""
    """Of a call, its arguments."""
    call_id: str = ""
    name: str = ""
    is_done: bool = False

    def to_wire(self, status: str) -> dict[str, Any]:
        head = {"id": self.id, "type": self.kind, "status": status}
        if self.kind == "function_call":
            return {**head, "call_id": self.call_id, "name": self.name, "arguments": self.text}
        parts = [self.part()] if self.text or self.is_done else []
        if self.kind == "reasoning":
            return {**head, "summary": [], "content": parts}
        return {**head, "role": "assistant", "content": parts}

    def part(self) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}


class ResponsesAnswer:
    """One response as it grows: `begin`, `feed` and `close` give its events, `snapshot` the whole."""

    def __init__(self, response_id: str, body: Mapping[str, Any], model: str | None, created_at: float) -> None:
        self.id = response_id
        self._body = body
        self._model = model
        self._created_at = created_at
        self._completed_at: int | None = None
        self._items: list[_Item] = []
        self._current: _Item | None = None
        self._calls: dict[int, _Item] = {}
        self._finish: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._number = 0

    def begin(self, is_stored: bool) -> list[Event]:
        """The first events: the response, empty."""
        response = self.snapshot("in_progress", is_stored=is_stored)
        return [self._event("response.created", response=response), self._event("response.in_progress",
                response=response)]  # fmt: skip

    def feed(self, delta: Delta) -> list[Event]:
        """The events of what is new."""
        events: list[Event] = []
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.reasoning:
            events += self._text("reasoning", delta.reasoning)
        if delta.content:
            events += self._text("message", delta.content)
        for call in delta.calls:
            events += self._call(call)
        if delta.finish_reason is not None:
            self._finish = delta.finish_reason
        return events

    def complete(self) -> list[Event]:
        """The chat is over: the items end. An answer of nothing is a message without text."""
        events: list[Event] = []
        self._completed_at = int(time.time())
        if not self._items:
            events += self._open_text("message")
        for item in self._items:
            events += self._close(item)
        return events

    def last(self, is_stored: bool) -> Event:
        """The stream's last event, after `complete`."""
        response = self.snapshot(self.status, is_stored=is_stored)
        return self._event(f"response.{self.status}", response=response)

    @property
    def status(self) -> str:
        """Of the whole, as OpenAI names it."""
        return "incomplete" if self._finish in _CUT else "completed"

    def error(self, fields: Mapping[str, Any]) -> Event:
        """How a failure is told once the stream has begun."""
        return self._event("error", **{name: fields[name] for name in ("code", "message", "param")})

    def snapshot(self, status: str, *, is_stored: bool, error: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The response object; what the client left out is null or what it means to leave it out."""
        body, cut = self._body, _CUT.get(self._finish or "")
        sampling = {name: default if body.get(name) is None else body[name] for name, default in _SAMPLING.items()}
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(self._created_at),
            "completed_at": self._completed_at if status == "completed" else None,
            "status": status,
            "background": body.get("background") is True,
            "error": None if error is None else {"code": error.get("code"), "message": error.get("message")},
            "incomplete_details": {"reason": cut} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "max_tool_calls": None,
            "metadata": body.get("metadata") or {},
            "model": body.get("model") or self._model,
            "output": [item.to_wire(self._status_of(item)) for item in self._items],
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "previous_response_id": body.get("previous_response_id"),
            "prompt_cache_key": body.get("prompt_cache_key"),
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": body.get("safety_identifier"),
            "service_tier": "default",
            "store": is_stored,
            **sampling,
            "text": _text_config(body.get("text") or {}),
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": [_TOOL | tool for tool in body.get("tools") or ()],
            "top_logprobs": 0,
            "truncation": "disabled",
            "usage": None if self._usage is None else _usage(self._usage),
            "user": body.get("user"),
        }

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _text(self, kind: Literal["reasoning", "message"], piece: str) -> list[Event]:
        events: list[Event] = []
        item = self._current
        if item is None or item.kind != kind:
            events += [] if item is None else self._close(item)
            events += self._open_text(kind)
            item = self._items[-1]
        item.text += piece
        return [*events, self._of_part(item, "delta", delta=piece)]

    def _open_text(self, kind: Literal["reasoning", "message"]) -> list[Event]:
        item = self._current = self._add(kind)
        added = self._event("response.output_item.added", output_index=item.index, item=item.to_wire("in_progress"))
        return [added, self._event("response.content_part.added", item_id=item.id, output_index=item.index,
                                   content_index=0, part=item.part())]  # fmt: skip

    def _of_part(self, item: _Item, what: str, **fields: Any) -> Event:
        name = "reasoning_text" if item.kind == "reasoning" else "output_text"
        more: dict[str, Any] = {} if item.kind == "reasoning" else {"logprobs": []}
        return self._event(f"response.{name}.{what}", item_id=item.id, output_index=item.index, content_index=0,
                           **fields, **more)  # fmt: skip

    def _call(self, call: CallDelta) -> list[Event]:
        events: list[Event] = []
        item = self._calls.get(call.index)
        if item is None:
            events += [] if self._current is None else self._close(self._current)
            item = self._calls[call.index] = self._add("function_call")
            item.call_id, item.name = call.id or f"call_{token_hex(12)}", call.name or ""
            events.append(
                self._event("response.output_item.added", output_index=item.index, item=item.to_wire("in_progress"))
            )
        if call.arguments:
            item.text += call.arguments
            events.append(self._event("response.function_call_arguments.delta", item_id=item.id,
                                      output_index=item.index, delta=call.arguments))  # fmt: skip
        return events

    def _add(self, kind: _Kind) -> _Item:
        item = _Item(kind, _PREFIX[kind] + token_hex(16), len(self._items))
        self._items.append(item)
        return item

    def _close(self, item: _Item) -> list[Event]:
        if item.is_done:
            return []
        item.is_done = True
        if item is self._current:
            self._current = None
        if item.kind == "function_call":
            events = [self._event("response.function_call_arguments.done", item_id=item.id, output_index=item.index,
                                  name=item.name, arguments=item.text)]  # fmt: skip
        else:
            events = [self._of_part(item, "done", text=item.text), self._event("response.content_part.done",
                      item_id=item.id, output_index=item.index, content_index=0, part=item.part())]  # fmt: skip
        told = item.to_wire(self._status_of(item))
        return [*events, self._event("response.output_item.done", output_index=item.index, item=told)]

    def _status_of(self, item: _Item) -> str:
        """An answer that was cut was cut in its last item."""
        if not item.is_done:
            return "in_progress"
        return "incomplete" if self._finish in _CUT and item is self._items[-1] else "completed"


def _text_config(text: Mapping[str, Any]) -> dict[str, Any]:
    form = text.get("format") or {"type": "text"}
    unsaid = {"description": None, "strict": False} if form.get("type") == "json_schema" else {}
    return {**text, "format": unsaid | form}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": count(usage, "prompt_tokens"),
        "input_tokens_details": {
            "cached_tokens": count(usage, "prompt_tokens_details", "cached_tokens"),
            "cache_write_tokens": 0,
        },
        "output_tokens": count(usage, "completion_tokens"),
        "output_tokens_details": {
            "reasoning_tokens": count(usage, "completion_tokens_details", "reasoning_tokens")
            or count(usage, "reasoning_tokens")
        },
        "total_tokens": count(usage, "total_tokens"),
    }
