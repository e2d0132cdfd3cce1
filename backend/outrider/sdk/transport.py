"""The client's HTTP side: one session, timeouts, retries, and foreign errors turned into ours."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import orjson
from yarl import URL

from outrider.errors import APIError, ConnectionFailed, ConnectionTimeout, from_wire
from outrider.sdk.retry import Refusal, retry_after_s, retry_delay_s
from outrider.sse import DONE, Event, SSEDecoder, SSEError
from outrider.version import __version__

T = TypeVar("T")
log = logging.getLogger(__name__)

_MAX_CONNECTIONS = 1000
#: How long an ended stream may take to end its body too, before the connection is given up instead of kept.
_END_OF_BODY_S = 0.5


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a transport; times in seconds."""

    base_url: str
    api_key: str | None
    timeout_s: float
    connect_timeout_s: float
    max_retries: int

    def __post_init__(self) -> None:
        url = URL(self.base_url)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"base_url must be an http or https address, not {self.base_url!r}")
        for name, value in (("timeout", self.timeout_s), ("connect_timeout", self.connect_timeout_s)):
            if not value > 0:
                raise ValueError(f"{name} must be a positive number of seconds, not {value!r}")
        if self.max_retries < 0:
            raise ValueError(f"max_retries must not be negative, not {self.max_retries!r}")


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole answer with a good status."""

    value: Any
    request_id: str | None


class Transport:
    """Sends requests and tries again; its session begins with the first one and ends with `close`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._base_url = options.base_url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._limits: set[asyncio.Timeout] = set()  # one for each wait in progress
        self._closed = asyncio.Event()

    async def close(self) -> None:
        """Drop all connections; running requests fail with ConnectionFailed."""
        self._closed.set()
        # aiohttp does not wake a reader whose session is closed, so every wait is made to run out.
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())
        if self._session is not None:
            await self._session.close()

    async def fetch(self, method: str, path: str, body: object = None) -> Whole:
        """One whole JSON answer; the timeout is for each attempt as a whole. Raises APIError, ConnectionFailed."""

        async def attempt(num_retries: int) -> tuple[bytes, str | None] | Refusal:
            async with self._waiting("an answer"):
                response = await self._send(method, path, body, num_retries)
                data = await response.read()
            if response.status >= 400:
                return _refusal(response, data)
            return data, response.headers.get("x-request-id")

        data, request_id = await self._retrying(attempt)
        return Whole(parse_json(data), request_id)

    async def open_stream(self, path: str, body: object) -> EventSource:
        """Post, and wait for the first event; the timeout is for each wait. Raises APIError, ConnectionFailed."""

        async def attempt(num_retries: int) -> EventSource | Refusal:
            async with self._waiting("an answer"):
                response = await self._send("POST", path, body, num_retries)
                if response.status >= 400:
                    return _refusal(response, await response.read())
            with ExitStack() as on_failure:
                on_failure.callback(response.close)
                source = EventSource(response, self._waiting)
                await source.wait()
                on_failure.pop_all()
            return source

        return await self._retrying(attempt)

    async def _retrying(self, attempt: Callable[[int], Awaitable[T | Refusal]]) -> T:
        num_retries = 0
        while True:
            try:
                outcome = await attempt(num_retries)
            except ConnectionFailed as error:
                outcome = Refusal(error)
            if not isinstance(outcome, Refusal):
                return outcome
            delay_s = retry_delay_s(outcome, num_retries, now_s=time.time(), chance=random.random())
            if delay_s is None or num_retries >= self._options.max_retries or await self._closes_within(delay_s):
                raise outcome.error
            num_retries += 1
            log.debug("retry %d after: %s", num_retries, outcome.error)

    async def _closes_within(self, seconds: float) -> bool:
        """The pause before a retry, which a closed client ends."""
        try:
            async with asyncio.timeout(seconds):
                return await self._closed.wait()
        except TimeoutError:
            return False

    async def _send(self, method: str, path: str, body: object, num_retries: int) -> aiohttp.ClientResponse:
        if self._closed.is_set():
            raise RuntimeError("the client is closed")
        if self._session is None:
            self._session = self._new_session()
        headers = {"x-outrider-retry-count": str(num_retries)}
        data = None
        if body is not None:
            data = orjson.dumps(body)
            headers["Content-Type"] = "application/json"
        return await self._session.request(method, self._base_url + path, data=data, headers=headers)

    def _new_session(self) -> aiohttp.ClientSession:
        headers = {"User-Agent": f"outrider/{__version__}", "Accept": "application/json, text/event-stream"}
        if self._options.api_key is not None:
            headers["Authorization"] = f"Bearer {self._options.api_key}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._options.connect_timeout_s)
        connector = aiohttp.TCPConnector(limit=_MAX_CONNECTIONS)
        return aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector)

    @asynccontextmanager
    async def _waiting(self, awaited: str) -> AsyncIterator[None]:
        """One wait with its limit; the one place where errors of aiohttp and of the system become ours."""
        try:
            async with asyncio.timeout(self._options.timeout_s) as limit:
                self._limits.add(limit)
                try:
                    yield
                finally:
                    self._limits.discard(limit)
        except aiohttp.ConnectionTimeoutError as error:
            wait_s = self._options.connect_timeout_s
            raise ConnectionTimeout(f"no connection to {self._base_url} within {wait_s:g} s") from error
        except TimeoutError as error:
            if self._closed.is_set():
                raise ConnectionFailed("the client was closed") from error
            wait_s = self._options.timeout_s
            raise ConnectionTimeout(f"waited {wait_s:g} s for {awaited} from {self._base_url}") from error
        except aiohttp.ClientConnectorError as error:
            raise ConnectionFailed(f"cannot connect to {self._base_url}: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ConnectionFailed(f"the connection to {self._base_url} broke: {reason}") from error


class EventSource:
    """The blocks of one streamed answer; whoever holds it closes it."""

    def __init__(
        self, response: aiohttp.ClientResponse, waiting: Callable[[str], AbstractAsyncContextManager[None]]
    ) -> None:
        self.request_id = response.headers.get("x-request-id")
        self._response = response
        self._waiting = waiting
        self._decoder = SSEDecoder()
        self._events: deque[Event] = deque()

    async def wait(self) -> None:
        """Until an event is there; ConnectionFailed when the stream ends instead."""
        async with self._waiting("the next event"):
            while not self._events:
                await self._read()

    async def next_event(self) -> Event:
        """The next block; ConnectionFailed when the stream ends without its end marker."""
        if not self._events:
            await self.wait()
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
        """Give up the stream: its connection is closed, which tells the server to stop."""
        self._response.close()


def parse_json(data: bytes) -> Any:
    """JSON of a good answer; ConnectionFailed when it is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ConnectionFailed(f"the server's answer is not JSON: {error}") from error


def _refusal(response: aiohttp.ClientResponse, data: bytes) -> Refusal:
    headers = {name.lower(): value for name, value in response.headers.items()}
    error = _api_error(response.status, data)
    error.request_id = headers.get("x-request-id")
    error.retry_after_s = retry_after_s(headers, now_s=time.time())
    return Refusal(error, response.status, headers)


def _api_error(status: int, data: bytes) -> APIError:
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, Mapping):
        start = data[:200].decode("utf-8", errors="replace").strip()
        return from_wire(status, None, default_message=f"HTTP {status}: {start}" if start else "")
    # SGLang's own routes put the fields flat into the body.
    return from_wire(status, body.get("error", body))
