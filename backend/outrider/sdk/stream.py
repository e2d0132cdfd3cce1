"""One streamed answer: opened by entering it, read by iterating, closed on every way out."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Self

from pydantic import ValidationError

from outrider.core import Report
from outrider.errors import ConnectionFailed, from_wire
from outrider.sdk.results import ChatResult, Finished, Head, OtherDelta, StreamEvent, TextDelta, parse_json
from outrider.sdk.source import Source
from outrider.sdk.wire import Chunk, ChunkChoice, Delta, Message, Usage
from outrider.sse import DONE


class StreamState(Enum):
    """Life of a stream.

    Example::

        assert stream.state is StreamState.ENDED
    """

    NEW = "new"  # nothing sent yet
    OPEN = "open"  # holds a connection
    ENDED = "ended"  # read to its end marker; the connection is free
    CLOSED = "closed"  # left early or failed; the connection is closed


class ChatStream:
    """The events of one answer of chat or completions, or of a run.

    Entering sends the request and waits for the first event. Leaving the block, also by `break`, an exception or a
    cancellation, frees the connection; a stream left early tells the server to stop (a run goes on). Iterating
    raises APIError for an error inside the stream, ConnectionFailed for one that breaks or ends early,
    ConnectionTimeout after the seconds of `Timeouts`.

    Example::

        async with client.chat_stream("Count to ten.") as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    print(event.text, end="")
            print(stream.report)
    """

    def __init__(self, open_source: Callable[[], Awaitable[Source]]) -> None:
        self._open_source = open_source
        self._source: Source | None = None
        self._state = StreamState.NEW
        self._pending: deque[StreamEvent] = deque()
        self._text: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._others: dict[str, Any] = {}
        self._counted = _Counts()
        self._raw: dict[str, Any] = {}
        self.head = Head(0, {})
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.report: Report | None = None

    def __repr__(self) -> str:
        return f"<ChatStream {self._state.value} request_id={self.request_id}>"

    @property
    def state(self) -> StreamState:
        """Where it stands."""
        return self._state

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def request_id(self) -> str | None:
        """The `x-request-id` of the answer; None before it is there."""
        return self.head.request_id

    @property
    def last_event_id(self) -> int | None:
        """Number of the last event of a run that was read, to go on behind it later; None of other streams."""
        return getattr(self._source, "last_event_id", None)

    async def __aenter__(self) -> Self:
        if self._state is not StreamState.NEW:
            raise RuntimeError(f"a stream is entered once; this one is {self._state.value}")
        self._state = StreamState.CLOSED
        self._source = await self._open_source()
        self._state = StreamState.OPEN
        self.head = self._source.head
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the connection; does nothing the second time. Raises nothing."""
        if self._state is StreamState.OPEN:
            self._state = StreamState.CLOSED
        if self._source is not None:
            self._source.close()

    async def aclose(self) -> None:
        """`close`, for `contextlib.aclosing`. Raises nothing."""
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._pending:
            if self._state is StreamState.ENDED:
                raise StopAsyncIteration
            await self._read()
        return self._pending.popleft()

    async def result(self) -> ChatResult:
        """Read what is left and return the whole answer; events that it reads are not given to an iteration.

        Raises what iterating raises.
        """
        async for _ in self:
            pass
        calls = [self._calls[index] for index in sorted(self._calls)] or None
        message = Message.model_validate({**self._others, "content": self.text, "tool_calls": calls})
        return ChatResult(message, self.finish_reason, self.usage, self.report, self.head, self._raw)

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
            raise ConnectionFailed(f"the server sent an event that is no chunk of an answer: {error}") from error
        self._raw |= {key: value for key, value in wire.items() if key != "choices" and value is not None}
        self.report = chunk.outrider or self.report
        for choice in chunk.choices:
            self._take_choice(choice, chunk.usage)
            self.finish_reason = choice.finish_reason or self.finish_reason
        self.usage = chunk.usage or self.usage

    def _take_choice(self, choice: ChunkChoice, usage: Usage | None) -> None:
        delta = choice.delta if choice.text is None else Delta(content=choice.text)
        if delta.content:
            self._text.append(delta.content)
            self._pending.append(self._counted.delta(delta.content, usage))
        others = {
            key: value for key, value in (delta.model_extra or {}).items() if value is not None and key != "role"
        }
        for call in others.get("tool_calls") or ():
            self._take_call(call)
        if others:
            self._pending.append(OtherDelta(others))
        for key, value in others.items():
            so_far = self._others.get(key)
            is_piece = isinstance(value, str | list) and isinstance(so_far, type(value))
            self._others[key] = so_far + value if is_piece else value

    def _take_call(self, wire: Any) -> None:
        """A call comes in pieces: its id and name once, its arguments bit by bit."""
        if not isinstance(wire, dict):
            raise ConnectionFailed("the server sent a tool call that is no object")
        so_far = self._calls.setdefault(wire.get("index", 0), {"id": "", "function": {"name": "", "arguments": ""}})
        so_far |= {key: value for key, value in wire.items() if key not in ("id", "index", "function")}
        function = wire.get("function") or {}
        so_far["id"] = wire.get("id") or so_far["id"]
        so_far["function"]["name"] = function.get("name") or so_far["function"]["name"]
        so_far["function"]["arguments"] += function.get("arguments") or ""


class _Counts:
    """Turns the running counts of a stream into those of its pieces."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._num_accepted = 0

    def delta(self, text: str, usage: Usage | None) -> TextDelta:
        if usage is None:
            return TextDelta(text)
        num_tokens = usage.completion_tokens - self._num_tokens
        self._num_tokens = usage.completion_tokens
        details = (usage.model_extra or {}).get("completion_tokens_details") or {}
        accepted = details.get("accepted_draft_tokens")
        if accepted is None:
            return TextDelta(text, num_tokens)
        num_accepted, self._num_accepted = accepted - self._num_accepted, accepted
        return TextDelta(text, num_tokens, num_accepted)
