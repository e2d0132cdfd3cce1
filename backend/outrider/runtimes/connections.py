"""What aiohttp does not say of its connections: that one had been used, that one was lost in the middle of a body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from weakref import WeakKeyDictionary

import aiohttp


@dataclass(slots=True)
class Attempt:
    """What is noted while a request is sent."""

    is_reused: bool = False
    """It went over a connection that had been used, which the lane may have closed in this very moment."""


def noting_reuse() -> aiohttp.TraceConfig:
    """For a session whose requests are sent with an `Attempt` as their `trace_request_ctx`."""

    async def note(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        if isinstance(context.trace_request_ctx, Attempt):
            context.trace_request_ctx.is_reused = True

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(note)
    return config


class Connections:
    """Tells whoever reads a body when its connection is lost.

    aiohttp does not when it closed the connection itself, for bytes that are no chunk in the middle of a body.
    """

    def __init__(self) -> None:
        self._bodies: WeakKeyDictionary[asyncio.Future[None], aiohttp.StreamReader | None] = WeakKeyDictionary()

    @contextmanager
    def reading(self, response: aiohttp.ClientResponse) -> Iterator[None]:
        """The body is read in the block."""
        connection = response.connection
        closed = None if connection is None or connection.protocol is None else connection.protocol.closed
        if closed is None:
            if connection is not None:  # lost since the head arrived
                _fail(response.content)
            yield
            return
        if closed not in self._bodies:
            closed.add_done_callback(self._on_closed)
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
