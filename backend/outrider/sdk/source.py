"""The events of one streamed answer, off the wire; and those of a run, taken up again when the connection breaks."""

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
#: How a run numbers its events.
_NUMBER = re.compile(rb"^id: ?(\d+)\r?$", re.MULTILINE)

Waiting = Callable[[str, float], AbstractAsyncContextManager[None]]
"""Bounds a wait for what is named, in seconds."""


class Source(Protocol):
    """Blocks of one streamed answer; whoever holds it closes it."""

    @property
    def head(self) -> Head: ...

    async def next_event(self) -> Event:
        """The next block; ConnectionFailed when the stream ends without its end marker."""

    def close(self) -> None:
        """Give up the stream: its connection is closed, which tells the server to stop."""


class EventSource:
    """The blocks of one response."""

    def __init__(self, head: Head, response: aiohttp.ClientResponse, waiting: Waiting, event_s: float) -> None:
        """`event_s` is the longest wait for an event but the first, in seconds."""
        self.head = head
        self._response = response
        self._waiting = waiting
        self._event_s = event_s
        self._decoder = SSEDecoder()
        self._events: deque[Event] = deque()

    async def fill(self) -> None:
        """Until an event is there; ConnectionFailed when the stream ends instead."""
        while not self._events:
            await self._read()

    async def next_event(self) -> Event:
        if not self._events:
            async with self._waiting("the next event", self._event_s):
                await self.fill()
        event = self._events.popleft()
        if event.data == DONE:
            await self._finish()
        return event

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

    async def _finish(self) -> None:
        """Read the end of the body, so that the connection can be used again."""
        try:
            async with asyncio.timeout(_END_OF_BODY_S):
                await self._response.content.read()
        except (TimeoutError, aiohttp.ClientError, OSError):
            log.debug("the server ended the stream but not the body")
        self._response.close()

    def close(self) -> None:
        self._response.close()


class RunSource:
    """The events of a run: when the connection breaks, those behind the last one are asked for again."""

    def __init__(self, open_source: Callable[[int], Awaitable[Source | None]], after: int, max_retries: int) -> None:
        """`open_source(n)` gives the events behind number n, None when there will be none."""
        self._open_source = open_source
        self._max_retries = max_retries
        self._source: Source | None = None
        self._is_over = False
        self._num_retries = 0
        """Since the last event that has a number."""
        self.head = Head(200, {})
        self.last_event_id = after

    async def open(self) -> RunSource:
        self._source = await self._open_source(self.last_event_id)
        if self._source is None:
            self._is_over = True
        else:
            self.head = self._source.head
        return self

    async def next_event(self) -> Event:
        """Of a run that has no more events, the end marker."""
        while not self._is_over:
            if self._source is None:
                await self.open()  # is tried again by itself
                continue
            try:
                event = await self._source.next_event()
            except ConnectionFailed:
                self.close()
                if self._num_retries >= self._max_retries:
                    raise
                self._num_retries += 1
                continue
            if number := _NUMBER.search(event.raw):
                self.last_event_id, self._num_retries = int(number[1]), 0
            return event
        return Event(b"", DONE, None)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None
