"""Talks to lanes over HTTP: opens generations, reads their events, aborts what was left. Foreign errors end here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, Self

import aiohttp
import orjson

from outrider.errors import LaneFailed
from outrider.policy.plan import Plan
from outrider.runtimes.connections import Connector
from outrider.runtimes.dialects import dialect_of
from outrider.runtimes.protocol import error_of_response
from outrider.sse import DONE, Event, SSEDecoder, SSEError
from outrider.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 5.0
_ABORT_TIMEOUT_S = 5.0
_ERROR_BODY_TIMEOUT_S = 5.0
#: How long the end of a stream may follow its [DONE] before the connection is given up.
_END_TIMEOUT_S = 1.0
#: Under the five seconds after which uvicorn closes an idle connection, which would lose the request on it.
_KEEP_ALIVE_S = 4.0
#: Hexadecimal digits of an attempt's id.
_ID_LENGTH = 32


@dataclass(frozen=True, slots=True)
class LaneCall:
    """One attempt to have a lane generate."""

    path: str
    body: bytes
    """The lane's body, with `rid` in it where the route takes one."""
    rid: str | None
    """Fresh and of fixed length: SGLang aborts by prefix. None: the connection's end alone aborts it."""
    is_stream: bool
    headers: Mapping[str, str]

    def again(self) -> LaneCall:
        """The same with another id: the lane may still know the first one."""
        if self.rid is None:
            return self
        old, new = self.rid[-_ID_LENGTH:], token_hex(_ID_LENGTH // 2)
        return replace(self, body=self.body.replace(old.encode(), new.encode()), rid=self.rid.replace(old, new))


def lane_call(
    path: str,
    raw: bytes,
    plan: Plan,
    *,
    model: str | None,
    is_stream: bool,
    headers: Mapping[str, str] | None = None,
) -> LaneCall:
    """The client's body with our own members put in; every other byte stays. `model` sets it, None leaves it."""
    body, rid = dialect_of(path).body(raw, plan, token_hex(_ID_LENGTH // 2), model)
    return LaneCall(path, body, rid, is_stream, headers or {})


class LaneAnswer:
    """A lane's answer of status 200, while it comes in."""

    def __init__(self, lane: str, response: aiohttp.ClientResponse) -> None:
        self._lane = lane
        self._response = response
        self._ahead = b""
        """Bytes of the body that were waited for and not yet given."""
        self.is_ended = False
        """The lane has nothing more to do for this request."""

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def begin(self) -> None:
        """Wait for the body's first bytes, or its end. LaneFailed when the connection breaks."""
        with _translated(self._lane):
            self._ahead = await self._response.content.readany()

    async def body(self) -> bytes:
        """The whole body of an answer that is no stream."""
        with _translated(self._lane):
            raw = self._ahead + await self._response.read()
        self.is_ended = True
        return raw

    async def packets(self) -> AsyncGenerator[list[Event]]:
        """Events as they come, those that arrived together in one list; ends after [DONE] or with the body.

        LaneFailed when the connection breaks or the bytes are no events.
        """
        decoder = SSEDecoder()
        while True:
            with _translated(self._lane):
                data, self._ahead = self._ahead or await self._response.content.readany(), b""
                events = decoder.feed(data) if data else decoder.close()
            is_done = any(event.data == DONE for event in events)
            self.is_ended = is_done or not data
            if events:
                yield events
            if is_done:
                await self._await_end()
            if self.is_ended:
                return

    async def _await_end(self) -> None:
        """A body that is read to its end leaves a connection that can be used again."""
        with suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._response.read()


class LaneClient:
    """One connection pool for all lanes; use it as an async context manager."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._session: aiohttp.ClientSession | None = None
        self._aborts: set[asyncio.Task[None]] = set()
        self._connector: Connector | None = None

    async def __aenter__(self) -> Self:
        self._connector = Connector(keepalive_timeout=_KEEP_ALIVE_S)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # what a lane sets for one caller is not for the others
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            headers={"Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._aborts:
            await asyncio.wait(self._aborts)
        await self._open_session.close()

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the lane client is not open")
        return self._session

    @property
    def _connections(self) -> Connector:
        if self._connector is None:
            raise RuntimeError("the lane client is not open")
        return self._connector

    async def get_json(self, lane: str, url: str, *, timeout_s: float) -> tuple[int, Any]:
        """Status and parsed body of a GET, None for a body that is not JSON. LaneFailed when there is no answer."""
        status, raw = await self._get(lane, url, timeout_s)
        try:
            return status, orjson.loads(raw)
        except orjson.JSONDecodeError:
            return status, None

    async def get_text(self, lane: str, url: str, *, timeout_s: float) -> tuple[int, str]:
        """Status and text of a GET. LaneFailed when there is no answer."""
        status, raw = await self._get(lane, url, timeout_s)
        return status, raw.decode("utf-8", errors="replace")

    async def _get(self, lane: str, url: str, timeout_s: float) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        with _translated(lane):
            async with self._open_session.get(url, timeout=timeout) as response:
                return response.status, await response.read()

    @asynccontextmanager
    async def open(self, lane: str, url: str, call: LaneCall) -> AsyncIterator[LaneAnswer]:
        """Send `call` to the lane at `url` and wait for the head of its answer.

        Raises the error that a 4xx or 5xx states, and LaneFailed. Leaving before the answer's end, by cancellation
        or otherwise, closes the connection and sends an abort, both at once and without waiting.
        """
        response: aiohttp.ClientResponse | None = None
        is_running = True
        try:
            try:
                response, call = await self._post(lane, url, call)
            except LaneFailed:
                is_running = False
                raise
            if response.status != 200:
                is_running = False
                raise error_of_response(response.status, await _error_body(response))
            answer = LaneAnswer(lane, response)
            try:
                with self._connections.reading(response):
                    yield answer
            finally:
                is_running = not answer.is_ended
        finally:
            if response is not None:
                response.release()  # closes the connection unless the body was read to its end
            if is_running and call.rid is not None:
                self._start_abort(url, call.rid)

    async def _post(self, lane: str, url: str, call: LaneCall) -> tuple[aiohttp.ClientResponse, LaneCall]:
        """The answer, and the call that it answers: tried anew when a connection that had been used was closed."""
        with _translated(lane):
            while True:
                try:
                    return await self._send(url, call), call
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    if not self._connections.has_reused:
                        raise
                # The next one may be as stale; in the end there is a new one, whose failure counts.
                call = call.again()

    async def _send(self, url: str, call: LaneCall) -> aiohttp.ClientResponse:
        headers = {**call.headers, "Content-Type": "application/json"}
        return await self._open_session.post(url + call.path, data=call.body, headers=headers, allow_redirects=False)

    def _start_abort(self, url: str, rid: str) -> None:
        task = asyncio.create_task(self._abort(url, rid), name=f"abort {rid}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort(self, url: str, rid: str) -> None:
        """A failure is counted and otherwise ignored: the closed connection says the same."""
        timeout = aiohttp.ClientTimeout(total=_ABORT_TIMEOUT_S)
        is_delivered = False
        with suppress(aiohttp.ClientError, OSError):
            post = self._open_session.post(url + "/abort_request", json={"rid": rid}, timeout=timeout)
            async with post as response:
                is_delivered = response.status == 200
        self.metrics.abort_sent(is_delivered)


@contextmanager
def _translated(lane: str) -> Iterator[None]:
    """The one boundary where errors of the connection become ours."""
    try:
        yield
    except SSEError as error:
        raise LaneFailed(f"lane {lane}: {error}") from error
    except aiohttp.ClientConnectorError as error:
        raise LaneFailed(f"lane {lane} cannot be reached") from error
    except (aiohttp.ClientError, OSError) as error:
        raise LaneFailed(f"lane {lane} broke the connection: {str(error) or type(error).__name__}") from error


async def _error_body(response: aiohttp.ClientResponse) -> bytes:
    with suppress(aiohttp.ClientError, OSError):
        async with asyncio.timeout(_ERROR_BODY_TIMEOUT_S):
            return await response.read()
    return b""
