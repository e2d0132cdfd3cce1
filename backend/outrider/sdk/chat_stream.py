"""The streamed answer of chat or completions: its events, and the message that they add up to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import ValidationError

from outrider.core import Report
from outrider.errors import ConnectionFailed, from_wire
from outrider.sdk.results import ChatResult, Finished, OtherDelta, StreamEvent, TextDelta, parse_json, parsed
from outrider.sdk.source import Source
from outrider.sdk.stream import Stream
from outrider.sdk.wire import Chunk, ChunkChoice, Delta, Message, Usage
from outrider.sse import DONE

#: Texts of an object that come whole and perhaps again, not bit by bit.
_AT_ONCE = frozenset({"id", "type", "name", "role"})


class ChatStream(Stream[StreamEvent, ChatResult]):
    """The events of one answer of chat or completions, or of a run.

    Entering sends the request and waits for the first event. Leaving the block, also by `break`, an exception or a
    cancellation, frees the connection; a stream left early tells the server to stop (a run goes on). Iterating
    raises APIError for an error inside the stream, ConnectionFailed for one that breaks or ends early,
    ConnectionTimeout after the seconds of `Timeouts`. `head` has status and headers of the answer.

    Example::

        async with client.chat_stream("Count to ten.") as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    print(event.text, end="")
            print(stream.report, stream.head.headers)
    """

    def __init__(self, open_source: Callable[[], Awaitable[Source]]) -> None:
        super().__init__(open_source)
        self._calls: dict[int, dict[str, Any]] = {}
        self._others: dict[str, Any] = {}
        """Of the message, without text and calls."""
        self._counted = _Counts()
        self._raw: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.report: Report | None = None

    def _result(self) -> ChatResult:
        calls = [self._calls[index] for index in sorted(self._calls)] or None
        message = parsed(Message, {**self._others, "content": self.text, "tool_calls": calls})
        return ChatResult(message, self.finish_reason, self.usage, self.report, self.head, self._raw)

    def _take(self, data: bytes) -> bool:
        if data == DONE:
            self._pending.append(Finished(self.finish_reason, self.usage, self.report))
            return True
        wire = parse_json(data)
        if isinstance(wire, dict) and wire.get("error") is not None:
            error = from_wire(None, wire["error"])
            error.request_id = self.request_id
            raise error
        try:
            chunk = Chunk.model_validate(wire)
        except ValidationError as error:
            raise ConnectionFailed(f"the server sent an event that is no chunk of an answer: {error}") from error
        self._raw |= {key: value for key, value in wire.items() if key != "choices" and value is not None}
        self.report = chunk.outrider or self.report
        for choice in chunk.choices:
            self._take_choice(choice, chunk.usage)
            self.finish_reason = choice.finish_reason or self.finish_reason
        self.usage = chunk.usage or self.usage
        return False

    def _take_choice(self, choice: ChunkChoice, usage: Usage | None) -> None:
        delta = choice.delta if choice.text is None else Delta(content=choice.text)
        fields = dict(delta.model_extra or {})
        others = {key: value for key, value in fields.items() if value is not None and key != "role"}
        if delta.content:
            self._text.append(delta.content)
            self._pending.append(TextDelta(delta.content, *self._counted.new(usage)))
        for call in fields.pop("tool_calls", None) or ():
            self._take_call(call)
        _join(self._others, fields)
        if others:
            counts = (None, None) if delta.content else self._counted.new(usage)
            self._pending.append(OtherDelta(others, *counts))

    def _take_call(self, wire: Any) -> None:
        """A call comes in pieces: its id and name once, its arguments bit by bit."""
        if not isinstance(wire, dict):
            raise ConnectionFailed("the server sent a tool call that is no object")
        fields = {key: value for key, value in wire.items() if key != "index" and value is not None}
        _join(self._calls.setdefault(wire.get("index") or 0, {}), fields)


def _join(so_far: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Put a piece of an object behind the earlier ones: texts and lists go on, else the last value stays."""
    for key, value in piece.items():
        earlier: Any = so_far.get(key)
        if isinstance(value, dict):
            so_far[key] = dict(earlier) if isinstance(earlier, dict) else {}
            _join(so_far[key], value)
        elif key not in _AT_ONCE and type(value) is type(earlier) and isinstance(value, str | list):
            so_far[key] = earlier + value
        elif value not in ("", None) or earlier is None:
            so_far[key] = value


class _Counts:
    """Turns the running counts of a stream into those of its pieces."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._num_accepted = 0

    def new(self, usage: Usage | None) -> tuple[int | None, int | None]:
        """Tokens since the last piece, and accepted drafts among them; None where they are not counted."""
        if usage is None:
            return None, None
        num_tokens, self._num_tokens = usage.completion_tokens - self._num_tokens, usage.completion_tokens
        details = (usage.model_extra or {}).get("completion_tokens_details") or {}
        accepted = details.get("accepted_draft_tokens")
        if accepted is None:
            return num_tokens, None
        num_accepted, self._num_accepted = accepted - self._num_accepted, accepted
        return num_tokens, num_accepted
