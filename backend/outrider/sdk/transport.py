"""The client's HTTP side: connections, timeouts, retries, and foreign errors turned into ours."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import aiohttp
import orjson

from outrider.errors import APIError, ConnectionFailed, ConnectionTimeout, ModelNotFound, from_wire
from outrider.retry_after import retry_after_s
from outrider.sdk.options import Options
from outrider.sdk.results import Head, RawResponse, parsed
from outrider.sdk.retry import Refusal, retry_delay_s
from outrider.sdk.source import EventSource
from outrider.sdk.wire import Model, ModelList
from outrider.version import __version__

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Errors without a connection, so that nothing can have reached the server.
_NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)

Query = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request before it is sent; `path` begins with a slash."""

    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Query = field(default_factory=dict)
    is_of_root: bool = False
    """The path stands beside `/v1` and not under it."""
    is_once: bool = False
    """Not sent again when it may have had its effect."""
    needs_model: bool = False
    """Where the body names none, the client's own goes in when it is sent."""


class Connections:
    """What a client and those made from it by `with_options` share; begins with the first request."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._session: aiohttp.ClientSession | None = None
        self._limits: set[asyncio.Timeout] = set()  # one for each wait in progress
        self.closed = asyncio.Event()

    def session(self) -> aiohttp.ClientSession:
        """RuntimeError when they are closed."""
        if self.closed.is_set():
            raise RuntimeError("the client is closed")
        if self._session is None:
            limits = self._options.limits
            connector = aiohttp.TCPConnector(limit=limits.max_connections, keepalive_timeout=limits.keep_alive_s)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=self._options.trust_env)
        return self._session

    @asynccontextmanager
    async def limited(self, seconds: float) -> AsyncIterator[None]:
        """TimeoutError after so many seconds, or at once when the connections are closed."""
        async with asyncio.timeout(seconds) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    async def close(self) -> None:
        """Close every connection; whoever waits for one is woken."""
        self.closed.set()
        # aiohttp does not wake a reader whose session is closed, so every wait is made to run out.
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())
        if self._session is not None:
            await self._session.close()


class Transport:
    """Sends requests and tries again."""

    def __init__(self, options: Options, connections: Connections) -> None:
        self.options = options
        self.connections = connections
        self._times = options.timeouts
        self.model = options.model
        """Of calls that name none; None until one has asked for the first that the server lists."""

    async def models(self) -> list[Model]:
        """Those that the server offers. Raises APIError, ConnectionFailed."""
        return parsed(ModelList, (await self.fetch(Ask("GET", "/models"))).json()).data

    async def _name_model(self, ask: Ask) -> None:
        if not ask.needs_model or "model" in ask.body:
            return
        if self.model is None:
            models = await self.models()
            if not models:
                raise ModelNotFound("the server lists no models")
            self.model = models[0].id
        ask.body["model"] = self.model

    async def fetch(self, ask: Ask) -> RawResponse:
        """One whole answer with a good status. Raises APIError, ConnectionFailed."""

        async def attempt(num_retries: int) -> RawResponse | Refusal:
            async with self._waiting("an answer", self._times.answer_s):
                response = await self._send(ask, num_retries)
                data = await response.read()
            if response.status >= 400:
                return _refusal(response, data)
            return RawResponse(_head(response, num_retries), data)

        await self._name_model(ask)
        return await self._retrying(attempt, ask, self.options.max_retries)

    async def open_stream(self, ask: Ask, max_retries: int | None = None) -> EventSource | None:
        """Send, and wait for the first event; None for an empty answer. Raises APIError, ConnectionFailed.

        `max_retries` stands in for the option of this name.
        """

        async def attempt(num_retries: int) -> EventSource | Refusal | None:
            async with self._waiting("the first event", self._times.first_event_s):
                response = await self._send(ask, num_retries)
                if response.status >= 400:
                    return _refusal(response, await response.read())
                if response.status == 204:
                    response.release()
                    return None
                with ExitStack() as on_failure:
                    on_failure.callback(response.close)
                    head = _head(response, num_retries)
                    source = EventSource(head, response, self._waiting, self._times.event_s)
                    await source.fill()
                    on_failure.pop_all()
                return source

        await self._name_model(ask)
        return await self._retrying(attempt, ask, self.options.max_retries if max_retries is None else max_retries)

    async def opened(self, ask: Ask) -> EventSource:
        """As `open_stream`; ConnectionFailed also for an empty answer."""
        source = await self.open_stream(ask)
        if source is None:
            raise ConnectionFailed("the server answered a stream with nothing")
        return source

    async def _retrying(self, attempt: Callable[[int], Awaitable[T | Refusal]], ask: Ask, max_retries: int) -> T:
        num_retries = 0
        while True:
            try:
                outcome = await attempt(num_retries)
            except ConnectionFailed as error:
                outcome = Refusal(error)
            if not isinstance(outcome, Refusal):
                return outcome
            if ask.is_once:
                outcome = replace(outcome, can_double=not isinstance(outcome.error.__cause__, _NEVER_SENT))
            delay_s = retry_delay_s(outcome, num_retries, now_s=time.time(), chance=random.random())
            if delay_s is None or num_retries >= max_retries or await self._closes_within(delay_s):
                raise outcome.error
            num_retries += 1
            log.debug("retry %d after: %s", num_retries, outcome.error)

    async def _closes_within(self, seconds: float) -> bool:
        """The pause before a retry, which a closed client ends."""
        try:
            async with asyncio.timeout(seconds):
                return await self.connections.closed.wait()
        except TimeoutError:
            return False

    async def _send(self, ask: Ask, num_retries: int) -> aiohttp.ClientResponse:
        options, times = self.options, self._times
        headers = {"User-Agent": f"outrider/{__version__}", "Accept": "application/json, text/event-stream"}
        if options.api_key is not None:
            headers["Authorization"] = f"Bearer {options.api_key}"
        headers |= {"x-outrider-retry-count": str(num_retries), **options.headers, **ask.headers}
        data = None
        if ask.body is not None:
            data = orjson.dumps(ask.body)
            headers["Content-Type"] = "application/json"
        timeout = aiohttp.ClientTimeout(
            total=None, connect=times.pool_s + times.connect_s, sock_connect=times.connect_s
        )
        url = (options.root if ask.is_of_root else options.base_url.rstrip("/")) + ask.path
        session = self.connections.session()
        return await session.request(
            ask.method, url, params=ask.query, data=data, headers=headers, timeout=timeout, proxy=options.proxy
        )

    @asynccontextmanager
    async def _waiting(self, awaited: str, seconds: float) -> AsyncIterator[None]:
        """One wait with its limit; the one place where errors of aiohttp and of the system become ours."""
        server = self.options.base_url
        try:
            async with self.connections.limited(seconds):
                yield
        except aiohttp.ConnectionTimeoutError as error:
            connect_s, pool_s = self._times.connect_s, self._times.pool_s
            message = f"no connection to {server} within {connect_s:g} s, or no free one within {pool_s:g} s"
            raise ConnectionTimeout(message) from error
        except TimeoutError as error:
            if self.connections.closed.is_set():
                raise ConnectionFailed("the client was closed") from error
            raise ConnectionTimeout(f"waited {seconds:g} s for {awaited} from {server}") from error
        except aiohttp.ClientConnectorError as error:
            raise ConnectionFailed(f"cannot connect to {server}: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ConnectionFailed(f"the connection to {server} broke: {reason}") from error


def _head(response: aiohttp.ClientResponse, num_retries: int) -> Head:
    return Head(response.status, {name.lower(): value for name, value in response.headers.items()}, num_retries)


def _refusal(response: aiohttp.ClientResponse, data: bytes) -> Refusal:
    head = _head(response, 0)
    error = _api_error(response.status, data)
    error.request_id = head.request_id
    error.retry_after_s = retry_after_s(head.headers, now_s=time.time())
    return Refusal(error, response.status, head.headers)


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
