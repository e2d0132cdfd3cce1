"""Timeouts, addresses where nobody listens, and cancellation at every point where the client waits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from sdk_wire import delta, stream_of

from outrider import (
    AsyncClient,
    ConnectionFailed,
    ConnectionLimits,
    ConnectionTimeout,
    ServiceError,
    TextDelta,
    Timeouts,
)
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import SENTENCE, Fault, Reply, chat_reply, error_reply

Call = Callable[[AsyncClient], Awaitable[Any]]


async def whole(client: AsyncClient) -> str:
    return (await client.chat("hi")).text


async def streamed(client: AsyncClient) -> str:
    async with client.chat_stream("hi") as stream:
        return (await stream.result()).text


both = pytest.mark.parametrize("call", [whole, streamed])


@asynccontextmanager
async def deaf_address() -> AsyncIterator[str]:
    """An address whose queue of connections is full: further ones wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        with socket.create_connection(address):
            yield f"http://127.0.0.1:{address[1]}/v1"


@both
async def test_nobody_listens(call: Call) -> None:
    """A refused connection is named with its address and keeps its cause."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    async with AsyncClient(url, model="m", max_retries=0) as client:
        with pytest.raises(ConnectionFailed, match=f"cannot connect to {url}") as caught:
            await call(client)
    assert isinstance(caught.value.__cause__, aiohttp.ClientConnectorError)


@both
async def test_the_connection_has_its_own_timeout(call: Call) -> None:
    """A host that does not answer is given up after `connect_s`."""
    async with (
        deaf_address() as url,
        AsyncClient(url, model="m", max_retries=0, timeout=Timeouts(connect_s=0.2)) as client,
    ):
        with pytest.raises(ConnectionTimeout, match=r"no connection to .* within 0\.2 s") as caught:
            await call(client)
        assert isinstance(caught.value.__cause__, TimeoutError)


@both
@pytest.mark.parametrize("steps", [(Fault.HANG,), (b"", Fault.HANG), (b"data:", Fault.HANG)])
async def test_a_silent_server_is_given_up(connect: Any, until: Any, call: Call, steps: Any) -> None:
    """Before the head, after it, inside the body: the server also learns that we left."""
    async with connect(stream_of(*steps), timeout=0.2, max_retries=0) as (lane, client):
        with pytest.raises(ConnectionTimeout, match=r"waited 0\.2 s"):
            await call(client)
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)


@both
async def test_a_timeout_is_tried_again(connect: Any, call: Call) -> None:
    """What did not answer may answer the next time."""
    good = chat_reply(stream=call is streamed)
    async with connect(Reply(steps=(Fault.HANG,)), good, timeout=0.5) as (lane, client):
        assert await call(client) == "".join(SENTENCE)
        assert len(lane.requests) == 2


async def test_a_stream_may_last_longer_than_its_timeout(connect: Any) -> None:
    """The timeout is for the wait between events; a pause that is too long fails without a retry."""
    async with connect(chat_reply(stream=True, delay_s=0.3), timeout=1.5) as (_, client):
        start = asyncio.get_running_loop().time()
        assert await streamed(client) == "".join(SENTENCE)
        assert asyncio.get_running_loop().time() - start > 1.5
    async with connect(stream_of(delta(content="a"), b"", 30.0), timeout=0.3) as (lane, client):
        with pytest.raises(ConnectionTimeout, match="the next event"):
            await streamed(client)
        assert len(lane.requests) == 1


async def test_half_an_event_does_not_count(connect: Any) -> None:
    """Bytes that never become an event do not keep a stream alive."""
    async with connect(stream_of(delta(content="a"), *[0.1, b"data: x\n"] * 50), timeout=0.5) as (_, client):
        with pytest.raises(ConnectionTimeout):
            await streamed(client)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@both
async def test_cancelled_while_connecting(call: Call) -> None:
    """The call ends at once although the connection never came."""
    async with deaf_address() as url, AsyncClient(url, model="m") as client:
        task = asyncio.ensure_future(call(client))
        await asyncio.sleep(0.1)
        await cancelled(task)


@both
@pytest.mark.parametrize("steps", [(Fault.HANG,), (b"", Fault.HANG), (b"data:", Fault.HANG)])
async def test_cancelled_while_waiting(connect: Any, until: Any, call: Call, steps: Any) -> None:
    """Before the head, after it, inside the body: the connection is closed and the client stays usable."""
    async with connect(stream_of(*steps), chat_reply(stream=False)) as (lane, client):
        task = asyncio.ensure_future(call(client))
        await until(lambda: lane.num_open == 1)
        await asyncio.sleep(0.05)
        await cancelled(task)
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)
        assert await whole(client) == "".join(SENTENCE)


async def test_cancelled_between_events(connect: Any, until: Any) -> None:
    """A reader that is cancelled in the middle frees its connection."""
    seen = []

    async def read(client: AsyncClient) -> None:
        async with client.chat_stream("hi") as stream:
            async for event in stream:
                seen.append(event)

    async with connect(stream_of(delta(content="a"), Fault.HANG)) as (lane, client):
        task = asyncio.create_task(read(client))
        await until(lambda: seen)
        await cancelled(task)
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)
        assert seen == [TextDelta("a", None)]


@both
async def test_cancelled_in_the_pause_before_a_retry(connect: Any, until: Any, call: Call) -> None:
    """Nothing is sent after the cancellation."""
    async with connect(error_reply(503, headers=[("retry-after", "60")])) as (lane, client):
        task = asyncio.ensure_future(call(client))
        await until(lambda: lane.requests and lane.num_open == 0)
        await asyncio.sleep(0.05)
        await cancelled(task)
        assert len(lane.requests) == 1


@both
@pytest.mark.parametrize("steps", [(Fault.HANG,), (b"", Fault.HANG), (b"data:", Fault.HANG)])
async def test_closing_the_client_wakes_those_who_wait(connect: Any, until: Any, call: Call, steps: Any) -> None:
    """A call that waits when its client is closed fails at once; it neither hangs nor tries again."""
    async with connect(stream_of(*steps)) as (lane, client):
        task = asyncio.ensure_future(call(client))
        await until(lambda: lane.num_open == 1)
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(ConnectionFailed, match="closed"):
            await asyncio.wait_for(task, 60)
        assert len(lane.requests) == 1


@both
async def test_closing_the_client_ends_the_pause_before_a_retry(connect: Any, until: Any, call: Call) -> None:
    """The error that was to be tried again is raised at once."""
    async with connect(error_reply(503, headers=[("retry-after", "60")])) as (lane, client):
        task = asyncio.ensure_future(call(client))
        await until(lambda: lane.requests and lane.num_open == 0)
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(ServiceError):
            await asyncio.wait_for(task, 60)


@both
async def test_timeouts_by_kind(connect: Any, call: Call) -> None:
    """A whole answer, the first event and every later one are waited for apart."""
    first = Timeouts(first_event_s=0.1) if call is streamed else Timeouts(answer_s=0.1)
    awaited = "the first event" if call is streamed else "an answer"
    async with connect(stream_of(Fault.HANG), timeout=first, max_retries=0) as (_, client):
        with pytest.raises(ConnectionTimeout, match=rf"waited 0\.1 s for {awaited}"):
            await call(client)
    good = chat_reply(stream=call is streamed)
    slow = Reply(200, good.headers, (0.3, *good.steps))
    async with connect(slow, timeout=Timeouts(event_s=0.1), max_retries=0) as (_, client):
        assert await call(client) == "".join(SENTENCE)


@both
async def test_connections_are_limited(connect: Any, until: Any, call: Call) -> None:
    """A call waits for a free one, but not for ever; a free one is used."""
    limits, timeout = ConnectionLimits(max_connections=1), Timeouts(pool_s=0.1, connect_s=0.1)
    good = chat_reply(stream=call is streamed)
    async with connect(Reply(steps=(Fault.HANG,)), good, limits=limits, max_retries=0) as (lane, client):
        first = asyncio.ensure_future(call(client))
        await until(lambda: lane.num_open == 1)
        with pytest.raises(ConnectionTimeout, match=r"no free one within 0\.1 s"):
            await call(client.with_options(timeout=timeout))
        await cancelled(first)
        assert await call(client) == "".join(SENTENCE)


@both
@pytest.mark.parametrize("is_of_environment", [False, True])
async def test_requests_go_through_a_proxy(call: Call, is_of_environment: bool, monkeypatch: Any) -> None:
    """Named by an option or, where that is allowed, by the environment."""
    async with ScriptedLane(lambda _: chat_reply(stream=call is streamed)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        options: Any = {"trust_env": True} if is_of_environment else {"proxy": proxy.url}
        async with AsyncClient("http://gateway.invalid/v1", model="m", **options) as client:
            assert await call(client) == "".join(SENTENCE)
        assert proxy.requests[0].headers["host"] == "gateway.invalid"


async def test_a_run_is_tried_again_while_nobody_listens() -> None:
    """Nothing was sent to a server that refuses connections, so that another attempt cannot begin a second run."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    async with AsyncClient(url, model="m", max_retries=1) as client:
        start = asyncio.get_running_loop().time()
        with pytest.raises(ConnectionFailed, match="cannot connect"):
            await client.runs.start("hi")
        assert asyncio.get_running_loop().time() - start > 0.3  # the pause before the second attempt
