"""Talks to lanes over HTTP: opens generations, reads their events, aborts what was left. Foreign errors end here."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from random import getrandbits
from typing import Any, Self

import orjson

from outrider.errors import LaneFailed, LaneUnavailable
from outrider.policy.plan import Plan
from outrider.runtimes.connections import Connection, Connections, Request, begin
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
#: Of this process or machine, which say nothing of a lane.
_OUR_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
#: Bits of an attempt's id, and its hexadecimal digits.
_ID_BITS, _ID_LENGTH = 128, 32


@dataclass(slots=True)
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
        old, new = self.rid[-_ID_LENGTH:], fresh_id()
        return replace(self, body=self.body.replace(old.encode(), new.encode()), rid=self.rid.replace(old, new))


def fresh_id() -> str:
    """Unlike every other; nothing is secret about it, so it is not drawn from the system's own source, which takes
    three times as long."""
    return f"{getrandbits(_ID_BITS):0{_ID_LENGTH}x}"


def lane_call(
    path: str,
    raw: bytes,
    plan: Plan,
    *,
    model: str | None,
    is_stream: bool,
    headers: Mapping[str, str] | None = None,
    keys: Collection[str] | None = None,
) -> LaneCall:
    """The client's body with our own members put in; every other byte stays. `model` sets it, None leaves it; `keys`
    are all that `raw` has, and may be more, where they are known."""
    body, rid = dialect_of(path).body(raw, plan, fresh_id(), model, keys)
    return LaneCall(path, body, rid, is_stream, headers or {})


class LaneAnswer:
    """A lane's answer of status 200, while it comes in."""

    def __init__(self, lane: str, connection: Connection) -> None:
        self._lane = lane
        self._connection = connection
        self._ahead = b""
        """Bytes of the body that were waited for and not yet given."""
        self.is_ended = False
        """The lane has nothing more to do for this request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the answer."""
        return self._connection.headers

    async def begin(self) -> None:
        """Wait for the body's first bytes, or its end. LaneFailed when the connection breaks."""
        with _Translated(self._lane):
            self._ahead = await self._connection.read()

    async def body(self) -> bytes:
        """The whole body of an answer that is no stream."""
        with _Translated(self._lane):
            raw = self._ahead + await self._connection.read_all()
        self.is_ended = True
        return raw

    async def packets(self) -> AsyncGenerator[list[Event]]:
        """Events as they come, those that arrived together in one list; ends after [DONE] or with the body.

        LaneFailed when the connection breaks or the bytes are no events.
        """
        decoder = SSEDecoder()
        while True:
            with _Translated(self._lane):
                data, self._ahead = self._ahead or await self._connection.read(), b""
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
        if self._connection.is_complete:
            return
        with suppress(OSError):
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._connection.read_all()


class _Opened:
    """The context manager of `LaneClient.open`; one made of a generator costs several times as much."""

    def __init__(self, client: LaneClient, lane: str, url: str, call: LaneCall) -> None:
        self._client, self._lane, self._url, self._call = client, lane, url, call
        self._connection: Connection | None = None
        self._answer: LaneAnswer | None = None

    async def __aenter__(self) -> LaneAnswer:
        is_running = True
        try:
            try:
                with _Translated(self._lane):
                    connection = await self._post()
            except (LaneFailed, LaneUnavailable):
                is_running = False
                raise
            if connection.status != 200:
                is_running = False
                raise error_of_response(connection.status, await _error_body(connection), connection.headers)
            encoding = connection.headers.get("Content-Encoding", "identity")
            if encoding != "identity":
                raise LaneFailed(f"lane {self._lane} answered in the encoding {encoding}, which it was not asked for")
            self._answer = LaneAnswer(self._lane, connection)
            return self._answer
        finally:
            if self._answer is None:
                self._end(is_running=is_running)

    async def __aexit__(self, *_: object) -> None:
        self._end(is_running=self._answer is not None and not self._answer.is_ended)

    def _end(self, *, is_running: bool) -> None:
        if self._connection is not None:
            self._client.connections.give_back(self._url, self._connection)
        if is_running and self._call.rid is not None:
            self._client.start_abort(self._url, self._call.rid)

    async def _post(self) -> Connection:
        """The head has come there; tried anew when a connection that had been used was closed."""
        connections, call = self._client.connections, self._call
        while True:
            self._connection = connection = await connections.take(self._url)
            begin(connection, self._url, Request(call.path, call.body, call.headers))
            try:
                await connection.head()
                return connection
            except ConnectionError:
                if not connection.is_reused or connection.has_begun:
                    raise
            # The next one may be as stale; in the end there is a new one, whose failure counts.
            self._call = call = call.again()


class LaneClient:
    """One connection pool for all lanes; use it as an async context manager."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._aborts: set[asyncio.Task[None]] = set()
        self._connections: Connections | None = None

    async def __aenter__(self) -> Self:
        self._connections = Connections(keep_alive_s=_KEEP_ALIVE_S, connect_timeout_s=_CONNECT_TIMEOUT_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._aborts:
            await asyncio.wait(self._aborts)
        self.connections.close()

    @property
    def connections(self) -> Connections:
        """Of all lanes; RuntimeError before the client is entered."""
        if self._connections is None:
            raise RuntimeError("the lane client is not open")
        return self._connections

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
        with _Translated(lane):
            async with asyncio.timeout(timeout_s):
                return await self._exchange(url, Request(""))

    async def _exchange(self, url: str, request: Request) -> tuple[int, bytes]:
        """Status and body of a request that takes no time there. OSError when there is no answer."""
        while True:
            connection = await self.connections.take(url)
            try:
                begin(connection, url, request)
                await connection.head()
                return connection.status, await connection.read_all()
            except ConnectionError:
                if not connection.is_reused or connection.has_begun:
                    raise
            finally:
                self.connections.give_back(url, connection)

    def open(self, lane: str, url: str, call: LaneCall) -> AbstractAsyncContextManager[LaneAnswer]:
        """Send `call` to the lane at `url` and wait for the head of its answer.

        Raises the error that a 4xx or 5xx states, LaneFailed, and LaneUnavailable for want of connections here.
        Leaving before the answer's end, by cancellation or otherwise, closes the connection and sends an abort, both
        at once and without waiting.
        """
        return _Opened(self, lane, url, call)

    def start_abort(self, url: str, rid: str) -> None:
        """Tell the lane to stop, beside whatever goes on here."""
        task = asyncio.create_task(self._abort(url, rid), name=f"abort {rid}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort(self, url: str, rid: str) -> None:
        """A failure is counted and otherwise ignored: the closed connection says the same."""
        is_delivered = False
        with suppress(OSError):
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                status, _ = await self._exchange(url, Request("/abort_request", orjson.dumps({"rid": rid})))
                is_delivered = status == 200
        self.metrics.abort_sent(is_delivered)


class _Translated:
    """The one boundary where errors of the connection become ours."""

    def __init__(self, lane: str) -> None:
        self._lane = lane

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if kind is None:
            return
        if isinstance(error, SSEError):
            raise LaneFailed(f"lane {self._lane}: {error}") from error
        if isinstance(error, ConnectionError) and type(error) is ConnectionError:
            raise LaneFailed(f"lane {self._lane} broke the connection: {error}") from error
        if isinstance(error, OSError) and error.errno in _OUR_LIMITS:
            raise LaneUnavailable(
                f"no connection to lane {self._lane}: {error.strerror}", retry_after_s=1.0
            ) from error
        if isinstance(error, OSError):
            raise LaneFailed(f"lane {self._lane} cannot be reached") from error


async def _error_body(connection: Connection) -> bytes:
    with suppress(OSError):
        async with asyncio.timeout(_ERROR_BODY_TIMEOUT_S):
            return await connection.read_all()
    return b""
