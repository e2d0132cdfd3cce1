"""One streamed answer: opened by entering it, read by iterating, closed on every way out."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Self

from pydantic import ValidationError

from outrider.core import Report
from outrider.errors import ConnectionFailed, from_wire
from outrider.sdk.results import ChatResult, Chunk, Finished, Message, OtherDelta, StreamEvent, TextDelta, Usage
from outrider.sdk.transport import EventSource, parse_json
from outrider.sse import DONE


class StreamState(Enum):
    """Life of a stream."""

    NEW = "new"  # nothing sent yet
    OPEN = "open"  # holds a connection
    ENDED = "ended"  # read to its end marker; the connection is free
    CLOSED = "closed"  # left early or failed; the connection is closed


class ChatStream:
    """`async with client.chat_stream(...) as stream: async for event in stream: ...`

    Entering sends the request and waits for the first event. Leaving the block, also by `break`, an exception or a
    cancellation, frees the connection; a stream left early tells the server to stop. Iterating raises APIError for an
    error inside the stream, ConnectionFailed for one that breaks or ends early, ConnectionTimeout.
    """

    def __init__(self, open_source: Callable[[], Awaitable[EventSource]]) -> None:
        self._open_source = open_source
        self._source: EventSource | None = None
        self._state = StreamState.NEW
        self._pending: deque[StreamEvent] = deque()
        self._text: list[str] = []
        self._num_tokens = 0
        self._raw: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.report: Report | None = None
        self.request_id: str | None = None

    def __repr__(self) -> str:
        return f"<ChatStream {self._state.value} request_id={self.request_id}>"

    @property
    def state(self) -> StreamState:
        return self._state

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    async def __aenter__(self) -> Self:
        if self._state is not StreamState.NEW:
            raise RuntimeError(f"a stream is entered once; this one is {self._state.value}")
        self._state = StreamState.CLOSED
        self._source = await self._open_source()
        self._state = StreamState.OPEN
        self.request_id = self._source.request_id
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the connection; does nothing the second time."""
        if self._state is StreamState.OPEN:
            self._state = StreamState.CLOSED
        if self._source is not None:
            self._source.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._pending:
            if self._state is StreamState.ENDED:
                raise StopAsyncIteration
            await self._read()
        return self._pending.popleft()

    async def result(self) -> ChatResult:
        """Read what is left and return the whole answer; events that it reads are not given to an iteration."""
        async for _ in self:
            pass
        return ChatResult(self.text, self.finish_reason, self.usage, self.report, self.request_id, self._raw)

    async def _read(self) -> None:
        if self._source is None or self._state is not StreamState.OPEN:
            raise RuntimeError(f"the stream is {self._state.value}; read it inside `async with`")
        event = await self._source.next_event()
        if event.data == DONE:
            self._state = StreamState.ENDED
            self._pending.append(Finished(self.finish_reason, self.usage, self.report))
        elif event.data is not None:
            self._take(event.data)

    def _take(self, data: bytes) -> None:
        wire = parse_json(data)
        if isinstance(wire, dict) and wire.get("error") is not None:
            error = from_wire(None, wire["error"])
            error.request_id = self.request_id
            raise error
        try:
            chunk = Chunk.model_validate(wire)
        except ValidationError as error:
            raise ConnectionFailed(f"the server sent an event that is no chunk of a chat: {error}") from error
        self._raw |= {key: value for key, value in wire.items() if key != "choices" and value is not None}
        self.report = chunk.outrider or self.report
        for choice in chunk.choices:
            self._take_delta(choice.delta, chunk.usage)
            self.finish_reason = choice.finish_reason or self.finish_reason
        self.usage = chunk.usage or self.usage

    def _take_delta(self, delta: Message, usage: Usage | None) -> None:
        if delta.content:
            num_tokens = None
            if usage is not None:
                num_tokens = usage.completion_tokens - self._num_tokens
                self._num_tokens = usage.completion_tokens
            self._text.append(delta.content)
            self._pending.append(TextDelta(delta.content, num_tokens))
        others = {
            key: value for key, value in (delta.model_extra or {}).items() if value is not None and key != "role"
        }
        if others:
            self._pending.append(OtherDelta(others))
