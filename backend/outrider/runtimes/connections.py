"""HTTP/1.1 to lanes: connections that are used again, and answers that are read while they come in."""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import httptools
from aiohttp import BasicAuth, hdrs
from multidict import CIMultiDict
from yarl import URL

#: Bytes of one answer that nobody has read yet, from which on no more are taken from the connection.
_MAX_UNREAD = 256 * 1024
_MAX_HEAD_BYTES = 64 * 1024
_NO_BODY = frozenset({204, 304})


class Origin(NamedTuple):
    """A server as its URL names it."""

    server: tuple[str, int, bool]
    """Host, port, and whether it is spoken to over TLS."""
    prefix: str
    """Of every path."""
    fixed: str
    """Headers of every request."""


@lru_cache(maxsize=1024)
def origin_of(text: str) -> Origin:
    """ValueError for what is no URL of a server."""
    url = URL(text)
    if url.raw_host is None or url.port is None:
        raise ValueError(f"{text} names no server")
    fixed = f"{hdrs.HOST}: {url.host_port_subcomponent}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
    if (auth := BasicAuth.from_url(url)) is not None:
        fixed += f"{hdrs.AUTHORIZATION}: {auth.encode()}\r\n"
    return Origin((url.raw_host, url.port, url.scheme == "https"), url.raw_path.rstrip("/"), fixed)


class Request(NamedTuple):
    """What is asked of a server."""

    path: str
    body: bytes | None = None
    """JSON, posted; None: a GET."""
    headers: Mapping[str, str] | None = None


def _head(origin: Origin, request: Request) -> bytes:
    body = request.body
    lines = [f"{'GET' if body is None else 'POST'} {origin.prefix}{request.path} HTTP/1.1\r\n", origin.fixed]
    for name, value in (request.headers or {}).items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"the header {name} holds a line end")
        lines.append(f"{name}: {value}\r\n")
    if body is not None:
        lines.append(f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


class Connection(asyncio.Protocol):
    """One connection, which carries one exchange after the other, and the answer of the present one.

    What breaks it is raised as a ConnectionError where the answer is read.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self.is_reused = False
        self.idle_since_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        """0 until the head has come."""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.has_begun = False
        """Some byte of the answer has come."""
        self.is_complete = False
        self._parts: list[bytes] = []
        self._num_unread = self._num_head = 0
        self._is_paused = self._is_kept = self._ends_with_connection = False
        self._error: ConnectionError | None = None

    @property
    def is_open(self) -> bool:
        """Whether it can still be written to."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def can_be_reused(self) -> bool:
        """The exchange is over, and both sides keep the connection."""
        transport = self._transport
        return (
            self.is_complete
            and self._error is None
            and transport is not None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
            and self._is_kept
        )

    def send(self, head: bytes, body: bytes | None) -> None:
        """Begin another exchange."""
        if self.is_complete:
            self.is_reused = True
            self._begin()
        if self._transport is not None:
            self._transport.write(head if body is None else head + body)

    async def head(self) -> None:
        """Until status and headers are there. ConnectionError."""
        while not self.status:
            await self._more()

    async def read(self) -> bytes:
        """What has come of the body, or comes next; empty at its end. ConnectionError."""
        while not self._parts and not self.is_complete:
            await self._more()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._num_unread = [], 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    async def read_all(self) -> bytes:
        """The whole body. ConnectionError."""
        data = await self.read()
        if self.is_complete and not self._parts:
            return data
        parts = [data]
        while data := await self.read():
            parts.append(data)
        return b"".join(parts)

    def close(self) -> None:
        """At once; what was not sent yet is not sent any more."""
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, problem: str) -> None:
        if not self.is_complete and self._error is None:
            self._error = ConnectionError(problem)
        self.close()
        self._wake()

    # Of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's and asyncio's are both Transports

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self.has_begun = True
        if self.is_complete:  # nobody asked
            self.close()
            return
        if not self.status:
            self._num_head += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("what it sent is not HTTP")
            return
        if not self.status and self._num_head > _MAX_HEAD_BYTES:
            self._fail(f"the head of its answer is over {_MAX_HEAD_BYTES} bytes")
        elif self._num_unread > _MAX_UNREAD and not self._is_paused and not self.is_complete:
            self._is_paused = True
            if self._transport is not None:
                self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        if self._ends_with_connection and exc is None and self._error is None:
            self.is_complete = True
        self._fail(str(exc) if exc is not None else "it was closed before the answer's end")

    # Of the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, as the parser found it."""
        self.headers.add(name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        """The head is complete: how the body's end is known. What came before an interim answer is dropped."""
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
            return
        self.status, headers = status, self.headers
        is_framed = "Content-Length" in headers or "Transfer-Encoding" in headers or status in _NO_BODY
        self._ends_with_connection = not is_framed

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._parts.append(data)
        self._num_unread += len(data)

    def on_message_complete(self) -> None:
        """The body is complete, and the connection may be kept or not."""
        # Asked for here, since afterwards the parser has forgotten.
        self.is_complete, self._is_kept = self.status > 0, self._parser.should_keep_alive()


class Connections:
    """A pool for all lanes: the connection that was used last is used next."""

    def __init__(self, *, keep_alive_s: float, connect_timeout_s: float) -> None:
        self._keep_alive_s = keep_alive_s
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[tuple[str, int, bool], list[Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    async def take(self, url: str) -> Connection:
        """An idle connection to the server of `url`, or a new one. OSError when there is none to be had."""
        server = host, port, is_tls = origin_of(url).server
        idle, oldest_s = self._idle.get(server), time.monotonic() - self._keep_alive_s
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.idle_since_s >= oldest_s:
                return connection
            connection.close()
        self._forget(oldest_s)
        async with asyncio.timeout(self._connect_timeout_s):
            tls = self._context() if is_tls else None
            _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port, ssl=tls)
        return connection

    def _forget(self, oldest_s: float) -> None:
        """Close what is idle since before: of a server that is asked no more nobody else would."""
        for server, idle in list(self._idle.items()):
            kept = [one for one in idle if one.is_open and one.idle_since_s >= oldest_s]
            for connection in idle:
                if connection not in kept:
                    connection.close()
            self._idle[server] = kept
            if not kept:
                del self._idle[server]

    def give_back(self, url: str, connection: Connection) -> None:
        """For others, where that may be; it is closed otherwise, with whatever it still carries."""
        if connection.can_be_reused:
            connection.idle_since_s = time.monotonic()
            self._idle.setdefault(origin_of(url).server, []).append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close what is idle."""
        self._forget(math.inf)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def begin(connection: Connection, url: str, request: Request) -> None:
    """Send the request; its answer is the connection's from then on."""
    connection.send(_head(origin_of(url), request), request.body)
