"""The events of one streamed answer, off the wire; kept ones are taken up again when a connection breaks."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import aiohttp

from outrider.errors import ConnectionFailed
from outrider.sdk.results import Head
from outrider.sse import DONE, Event, SSEDecoder, SSEError

log = logging.getLogger(__name__)

#: How long an ended stream may take to end its body too, before the connection is given up instead of kept.
_END_OF_BODY_S = 0.5
#: How the events of a run are numbered, and those of a response.
RESPONSE_NUMBER = re.compile(rb'"sequence_number": ?(\d+)')
RUN_NUMBER = re.compile(rb"^id: ?(\d+)\r?$", re.MULTILINE)

Waiting = Callable[[str, float], AbstractAsyncContextManager[None]]
"""Bounds a wait for what is named, in seconds."""


class Source(Protocol):
    """Blocks of one streamed answer; whoever holds it closes it."""

    @property
    def head(self) -> Head:
        """Of the answer that the blocks come from."""

    async def next_event(self) -> Event:
        """The next block; ConnectionFailed when the stream ends instead."""

    async def finish(self) -> None:
        """The last event was read: the connection is to be used again, where the body ends here too."""

    def close(self) -> None:
        """Give up the stream: its connection is closed, which tells the server to stop."""


Reopen = Callable[[int, int], Awaitable[Source | None]]
"""Gives the events behind number n, with m retries; None when there will be none."""


class EventSource:
    """The blocks of one response."""

    def __init__(self, head: Head, response: aiohttp.ClientResponse, waiting: Waiting, event_s: float) -> None:
        """`event_s` is the longest wait for an event but the first, in seconds."""
        self.head = head
        self._response = response
        self._loop = asyncio.get_running_loop()
        self._waiting = waiting
        self._event_s = event_s
        self._decoder = SSEDecoder()
        self._events: deque[Event] = deque()

    async def fill(self) -> None:
        """Until an event is there; ConnectionFailed when the stream ends instead."""
        while not self._events:
            await self._read()

    async def next_event(self) -> Event:
        """See `Source`."""
        if not self._events:
            async with self._waiting("the next event", self._event_s):
                await self.fill()
        return self._events.popleft()

    async def _read(self) -> None:
        try:
            data = await self._response.content.readany()
        except RuntimeError as error:  # how aiohttp reports a connection that our own side has closed
            raise ConnectionFailed("the stream's connection was closed") from error
        try:
            self._events += self._decoder.feed(data) if data else self._decoder.close()
        except SSEError as error:
            raise ConnectionFailed(f"the stream ended early: {error}" if not data else str(error)) from error
        if not data and not self._events:
            raise ConnectionFailed("the stream ended early: the server closed it before its end marker")

    async def finish(self) -> None:
        """See `Source`; what the server does not end soon is left."""
        try:
            async with asyncio.timeout(_END_OF_BODY_S):
                await self._response.content.read()
        except (TimeoutError, aiohttp.ClientError, OSError, RuntimeError):  # the last: our own side has closed it
            log.debug("the server ended the stream but not the body")
        self._response.close()

    def close(self) -> None:
        """See `Source`."""
        self._response.close()

    def __del__(self) -> None:
        # An open response is held by its own connection, so that it would never be collected. This may be any thread.
        if not (self._response.closed or self._loop.is_closed()):
            self._loop.call_soon_threadsafe(self._response.close)


class KeptSource:
    """Events that the server keeps: when the connection breaks, those behind the last one are asked for again."""

    def __init__(self, open_source: Reopen, after: int, max_retries: int, number: re.Pattern[bytes]) -> None:
        """`number` finds an event's number."""
        self._open_source = open_source
        self._number = number
        self._max_retries = max_retries
        self._source: Source | None = None
        self._is_over = self._is_closed = False
        self._num_retries = 0
        """Since the last event that has a number; those of opening count too, so that they do not multiply."""
        self.head = Head(200, {})
        self.last_event_id = after

    async def open(self) -> KeptSource:
        """Ask for the events behind the last one that was read; ConnectionFailed when closed, also meanwhile."""
        self._check_open()
        self._source = await self._open_source(self.last_event_id, self._max_retries - self._num_retries)
        if self._source is None:
            self._is_over = True
        else:
            self.head = self._source.head
            self._num_retries += self.head.num_retries
        self._check_open()
        return self

    async def next_event(self) -> Event:
        """Of a run that has no more events, the end marker."""
        while not self._is_over:
            if self._source is None:
                await self.open()
                continue
            try:
                event = await self._source.next_event()
            except ConnectionFailed:
                self._drop()
                if self._is_closed or self._num_retries >= self._max_retries:
                    raise
                self._num_retries += 1
                continue
            if number := self._number.search(event.raw):
                if int(number[1]) <= self.last_event_id:  # sent again, though what is behind it was asked for
                    continue
                self.last_event_id, self._num_retries = int(number[1]), 0
            return event
        return Event(b"", DONE, None)

    async def finish(self) -> None:
        """See `Source`."""
        if self._source is not None:
            await self._source.finish()

    def close(self) -> None:
        """See `Source`."""
        self._is_closed = True
        self._drop()

    def _check_open(self) -> None:
        if self._is_closed:
            self._drop()
            raise ConnectionFailed("the stream was closed")

    def _drop(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None
