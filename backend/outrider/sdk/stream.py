"""A streamed answer: opened by entering it, read by iterating, closed on every way out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Generic, Self, TypeVar

from outrider.sdk.results import Head
from outrider.sdk.source import Source

EventT = TypeVar("EventT")
ResultT = TypeVar("ResultT")


class StreamState(Enum):
    """Life of a stream.

    Example::

        assert stream.state is StreamState.ENDED
    """

    NEW = "new"  # nothing sent yet
    OPEN = "open"  # holds a connection
    ENDED = "ended"  # read to its end marker; the connection is free
    CLOSED = "closed"  # left early or failed; the connection is closed


class Stream(ABC, Generic[EventT, ResultT]):
    """What all streams have in common; what their events mean is their own.

    Entering sends the request and waits for the first event. Leaving the block, also by `break`, an exception or a
    cancellation, frees the connection; a stream left early tells the server to stop (what runs in the background
    goes on). Iterating raises APIError for an error inside the stream, ConnectionFailed for one that breaks or ends
    early, ConnectionTimeout after the seconds of `Timeouts`.
    """

    def __init__(self, open_source: Callable[[], Awaitable[Source]]) -> None:
        self._open_source = open_source
        self._source: Source | None = None
        self._state = StreamState.NEW
        self._pending: deque[EventT] = deque()
        self._text: list[str] = []
        self.head = Head(0, {})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.value} request_id={self.request_id}>"

    @abstractmethod
    def _take(self, data: bytes) -> bool:
        """Put what an event says behind `_pending`; whether it was the last one. Raises what iterating raises."""

    @abstractmethod
    def _result(self) -> ResultT:
        """The whole answer, once the last event was taken."""

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
        """Number of the last event that was read, of a stream that can be taken up behind it; None of others."""
        return getattr(self._source, "last_event_id", None)

    async def __aenter__(self) -> Self:
        if self._state is not StreamState.NEW:
            raise RuntimeError(f"a stream is entered once; this one is {self._state.value}")
        self._state = StreamState.OPEN
        try:
            source = self._source = await self._open_source()
        finally:
            if self._source is None:
                self._state = StreamState.CLOSED
        self.head = source.head
        if self.state is StreamState.CLOSED:  # meanwhile
            source.close()
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

    async def __anext__(self) -> EventT:
        while not self._pending:
            if self._state is StreamState.ENDED:
                raise StopAsyncIteration
            await self._read()
        return self._pending.popleft()

    async def result(self) -> ResultT:
        """Read what is left and return the whole answer; events that it reads are not given to an iteration.

        Raises what iterating raises.
        """
        async for _ in self:
            pass
        return self._result()

    async def _read(self) -> None:
        if self._source is None or self._state is not StreamState.OPEN:
            raise RuntimeError(f"the stream is {self._state.value}; read it inside `async with`")
        event = await self._source.next_event()
        if event.data is not None and self._take(event.data):
            await self._source.finish()
            self._state = StreamState.ENDED
