"""One kept-alive HTTP connection at the level of bytes: cheap, and exact about arrival times."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Self, cast
from urllib.parse import urlsplit

import orjson

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"


class Wire(asyncio.Protocol):
    """One request at a time. Times are `time.monotonic()`, the same clock in every process of a machine."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        """Arrival of the first byte of the body."""
        self.on_body: Callable[[bytes], None] | None = None
        """Called with everything that arrives, the frames of chunks included."""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._buffer = bytearray()
        self._body_at = self._status = 0
        self._end: int | None = None

    @classmethod
    async def connect(cls, url: str) -> Self:
        """Open a connection to the server at `url`."""
        parts = urlsplit(url)
        _, protocol = await asyncio.get_running_loop().create_connection(cls, parts.hostname or "", parts.port or 80)
        return protocol

    async def ask(self, request: bytes) -> bytes:
        """The body of the answer, in its frames when it is chunked.

        ConnectionError when its status is not 200 or the server closes before its end.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._buffer.clear()
        self._body_at, self._end, self.first_s, self._status = 0, None, None, 0
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        answer = await self._answer
        if self._status != 200:
            raise ConnectionError(f"HTTP {self._status}: {answer[:300]!r}")
        return answer

    def close(self) -> None:
        """Leave, whatever is under way."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        now_s = time.monotonic()
        self._buffer += data
        if not self._body_at and not self._read_head():
            return
        if self.first_s is None and len(self._buffer) > self._body_at:
            self.first_s = now_s
        if self.on_body is not None:
            self.on_body(data)
        if self._is_complete and self._answer is not None and not self._answer.done():
            self._answer.set_result(bytes(self._buffer[self._body_at :]))

    def _read_head(self) -> bool:
        at = self._buffer.find(b"\r\n\r\n")
        if at < 0:
            return False
        self._status = int(self._buffer[9:12])
        self._body_at = at + 4
        length = _LENGTH.search(self._buffer, 0, at)
        self._end = None if length is None else self._body_at + int(length[1])
        return True

    @property
    def _is_complete(self) -> bool:
        if self._end is not None:
            return len(self._buffer) >= self._end
        return self._buffer.endswith(_LAST_CHUNK, self._body_at)


async def fetch(url: str, request: bytes) -> bytes:
    """The answer's body, on a connection of its own. OSError."""
    wire = await Wire.connect(url)
    try:
        return await wire.ask(request)
    finally:
        wire.close()


def get(path: str, api_key: str) -> bytes:
    """The bytes of a GET."""
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {api_key}\r\n\r\n".encode()


def post(path: str, body: object, api_key: str) -> bytes:
    """The bytes of a POST with a JSON body."""
    raw = orjson.dumps(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {api_key}\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw
