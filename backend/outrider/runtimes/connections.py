"""What aiohttp does not say of its connections: that one had been used, that one was lost in the middle of a body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import aiohttp

if TYPE_CHECKING:
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

_IS_REUSED = ContextVar("is_reused", default=False)


class Connector(aiohttp.TCPConnector):
    """A pool that tells these two things. (aiohttp's own hooks tell the first, and cost a tenth of a request.)"""

    def __init__(self, *, keepalive_timeout: float) -> None:
        super().__init__(limit=0, keepalive_timeout=keepalive_timeout)
        self._bodies: WeakKeyDictionary[asyncio.Future[None], aiohttp.StreamReader | None] = WeakKeyDictionary()

    @property
    def has_reused(self) -> bool:
        """Whether the last connection that this task got had been used: the lane may have closed it just then."""
        return _IS_REUSED.get()

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        _IS_REUSED.set(False)
        connection = await super().connect(req, traces, timeout)
        closed = None if connection.protocol is None else connection.protocol.closed
        if closed is not None and closed in self._bodies:
            _IS_REUSED.set(True)
        elif closed is not None:
            self._bodies[closed] = None
            closed.add_done_callback(self._on_closed)
        return connection

    @contextmanager
    def reading(self, response: aiohttp.ClientResponse) -> Iterator[None]:
        """The body is read in the block, and fails there when its connection is lost.

        aiohttp forgets that when it closed the connection itself, for bytes in a body that are no chunk.
        """
        connection = response.connection
        closed = None if connection is None or connection.protocol is None else connection.protocol.closed
        if closed is None:
            if connection is not None:  # lost since the head arrived
                _fail(response.content)
            yield
            return
        self._bodies[closed] = response.content
        try:
            yield
        finally:
            self._bodies[closed] = None

    def _on_closed(self, closed: asyncio.Future[None]) -> None:
        body = self._bodies.get(closed)
        if body is not None:
            _fail(body)
        if not closed.cancelled():
            closed.exception()  # retrieved, or asyncio would say in the log that nobody did


def _fail(body: aiohttp.StreamReader) -> None:
    """Unless it is complete, or has failed already."""
    if not body.is_eof() and body.exception() is None:
        body.set_exception(aiohttp.ClientPayloadError("what it sent is not HTTP"))
