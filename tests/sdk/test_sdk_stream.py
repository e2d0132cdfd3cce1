"""Streams: every way out frees the connection, and no end is mistaken for another."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest
from sdk_wire import DONE, SOON, WIRE_ERRORS, delta, stream_of

from outrider import ChatStream, ConnectionFailed, StreamState, TextDelta, errors
from outrider.runtimes.scripted_replies import Fault, Reply, chat_reply, error_event, error_reply, event

STREAM = chat_reply(stream=True, include_usage=True)


async def collect(stream: ChatStream) -> list[Any]:
    async with stream:
        return [event async for event in stream]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_packets_may_cut_anywhere(connect: Any, size: int) -> None:
    """A character of several bytes, a line end or an event cut by the network is put together again."""
    text = "é漢😀\u2028"
    raw = b": ping\r\n\r\n" + delta(content=text).replace(b"\n", b"\r\n") + delta("stop") + DONE
    pieces = [raw[start : start + size] for start in range(0, len(raw), size)]
    async with connect(stream_of(*pieces)) as (_, client):
        assert (await collect(client.chat_stream("hi")))[0] == TextDelta(text, None)


async def test_break_closes_the_connection(connect: Any, until: Any) -> None:
    """The server sees at once that nobody listens, and the client is as good as new."""
    async with connect(stream_of(delta(content="a"), delta(content="b"), Fault.HANG), STREAM) as (lane, client):
        async with client.chat_stream("hi") as stream:
            async for _ in stream:
                break
        assert stream.state is StreamState.CLOSED
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)
        assert (await collect(client.chat_stream("again")))[-1].finish_reason == "stop"


async def test_an_exception_in_the_block_closes_the_connection(connect: Any, until: Any) -> None:
    """What the reader raises passes through, and the connection is closed before."""
    async with connect(stream_of(delta(content="a"), Fault.HANG)) as (lane, client):
        with pytest.raises(KeyError, match="reader"):
            async with client.chat_stream("hi"):
                raise KeyError("reader")
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)


async def test_close_while_it_is_opened_is_a_close(connect: Any, until: Any) -> None:
    """Of the connection that comes afterwards; nothing can be read of it."""
    goes_on = asyncio.Event()
    async with connect(stream_of(goes_on, delta(content="a"), Fault.HANG)) as (lane, client):
        stream = client.chat_stream("hi")
        entering = asyncio.create_task(stream.__aenter__())
        await until(lambda: lane.requests)
        stream.close()
        goes_on.set()
        assert await entering is stream and stream.state is StreamState.CLOSED
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)
        with pytest.raises(RuntimeError, match="closed"):
            await anext(stream)


async def test_close_may_be_called_inside_the_block(connect: Any, until: Any) -> None:
    """A closed stream gives no more events, and closing twice does no harm."""
    reply = stream_of(delta(content="a"), Fault.HANG)
    async with connect(reply) as (lane, client), client.chat_stream("hi") as stream:
        stream.close()
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)
        with pytest.raises(RuntimeError, match="closed"):
            await anext(stream)


async def test_a_stream_read_to_its_end_gives_its_connection_back(connect: Any) -> None:
    """The next request uses the same connection."""
    async with connect(STREAM) as (lane, client):
        for _ in range(3):
            await collect(client.chat_stream("hi"))
        assert lane.num_connections == 1 and lane.disconnects == []


async def test_a_body_that_does_not_end_is_given_up(connect: Any, until: Any) -> None:
    """After the end marker nothing more is waited for, for long."""
    async with connect(stream_of(delta("stop"), DONE, Fault.HANG)) as (lane, client):
        async with asyncio.timeout(60):
            assert (await collect(client.chat_stream("hi")))[-1].finish_reason == "stop"
        await until(lambda: lane.num_open == 0)


@pytest.mark.parametrize(
    "tail",
    [
        (),
        (delta("stop"),),
        (b'data: {"choices": [',),
        (b"data: [DONE]",),
        (0.05, Fault.CLOSE),
        (0.05, Fault.RESET),
    ],
)
async def test_a_stream_without_its_end_marker_is_a_failure(connect: Any, until: Any, tail: Any) -> None:
    """Cut short in whatever way, it never looks complete, and is not tried again behind the reader's back."""
    async with connect(stream_of(delta(content="a"), b"", *tail)) as (lane, client):
        async with client.chat_stream("hi") as stream:
            assert await anext(stream) == TextDelta("a", None)
            with pytest.raises(ConnectionFailed, match=r"ended early|broke"):
                await stream.result()
            assert stream.text == "a"
        await until(lambda: lane.num_open == 0)
        assert len(lane.requests) == 1


async def test_a_stream_that_ends_cleanly_but_early_says_so(connect: Any) -> None:
    """The message tells a cut stream from a broken network."""
    async with connect(stream_of(delta(content="a"), delta("stop"))) as (_, client):
        with pytest.raises(ConnectionFailed, match="ended early"):
            await collect(client.chat_stream("hi"))


@pytest.mark.parametrize("kind", WIRE_ERRORS)
async def test_an_error_inside_the_stream_raises_its_class(connect: Any, kind: Any) -> None:
    """Text before it is delivered first; the connection is closed after it."""
    wire = event(kind("it failed", param="k").to_wire())
    async with connect(stream_of(delta(content="a") + wire, DONE)) as (lane, client):
        async with client.chat_stream("hi") as stream:
            assert await anext(stream) == TextDelta("a", None)
            with pytest.raises(kind) as caught:
                await anext(stream)
        assert (caught.value.message, caught.value.param, caught.value.request_id) == ("it failed", "k", "q9")
        assert len(lane.requests) == 1


@pytest.mark.parametrize(("status", "kind"), [(400, errors.InvalidRequest), (503, errors.ServiceError)])
async def test_an_error_event_of_a_bare_sglang_server(connect: Any, status: int, kind: Any) -> None:
    """Its flat object carries the status as its code."""
    async with connect(stream_of(error_event(status, "no room"), DONE)) as (_, client):
        with pytest.raises(kind, match="no room") as caught:
            await collect(client.chat_stream("hi"))
        assert caught.value.status == status


@pytest.mark.parametrize(
    "refusal",
    [
        error_reply(503, headers=[SOON]),
        Reply(steps=(Fault.CLOSE,)),
        stream_of(b"", 0.02, Fault.CLOSE),
        stream_of(b"", b""),
    ],
)
async def test_a_stream_is_tried_again_until_its_first_event(connect: Any, refusal: Reply) -> None:
    """A refusal, a broken connection, and a head that nothing follows: nothing was delivered yet."""
    async with connect(refusal, STREAM) as (lane, client):
        assert (await collect(client.chat_stream("hi")))[0] == TextDelta("The", None)
        assert [request.headers["x-outrider-retry-count"] for request in lane.requests] == ["0", "1"]


async def test_a_stream_is_used_once_and_inside_its_block(connect: Any) -> None:
    """Reading before entering, or entering twice, is a mistake of the program; the state shows."""
    async with connect(STREAM) as (_, client):
        stream = client.chat_stream("hi")
        assert repr(stream) == "<ChatStream new request_id=None>"
        with pytest.raises(RuntimeError, match="new"):
            await anext(stream)
        await collect(stream)
        assert "ended" in repr(stream)
        with pytest.raises(RuntimeError, match="entered once"):
            await stream.__aenter__()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_closing_the_client_ends_its_streams(connect: Any) -> None:
    """A stream of a closed client fails; it does not hang."""
    reply = stream_of(delta(content="a"), Fault.HANG)
    async with connect(reply) as (_, client), client.chat_stream("hi") as stream:
        assert await anext(stream) == TextDelta("a", None)
        await client.close()
        with pytest.raises(ConnectionFailed, match="closed"):
            await anext(stream)


async def test_aclosing_works(connect: Any, until: Any) -> None:
    """A stream is closed like any asynchronous iterator."""
    async with connect(stream_of(delta(content="a"), Fault.HANG)) as (lane, client):
        async with client.chat_stream("hi") as stream, contextlib.aclosing(stream):
            await anext(stream)
        await until(lambda: lane.num_open == 0)


async def test_a_forgotten_stream_frees_its_connection(connect: Any, until: Any) -> None:
    """One that was entered by hand, left open and dropped, as a reader that fails in a callback may do."""
    async with connect(stream_of(delta(content="a"), Fault.HANG), STREAM) as (lane, client):
        stream = await client.chat_stream("hi").__aenter__()
        assert (await anext(stream)).text == "a"
        assert lane.num_open == 1
        del stream
        gc.collect()
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)
        assert (await collect(client.chat_stream("again")))[-1].finish_reason == "stop"


async def test_a_hundred_streams_leave_no_connection_behind(connect: Any, until: Any) -> None:
    """Read to the end, left by break, by an exception, cancelled: whatever the order, the lane holds none open."""
    async with connect() as (lane, client):
        lane.reply = lambda request: (
            STREAM if request.json()["seed"] % 4 == 0 else stream_of(delta(content="a"), Fault.HANG)
        )

        async def read(seed: int) -> None:
            async with client.chat_stream("hi", seed=seed) as stream:
                async for _ in stream:
                    if seed % 4 == 1:
                        break
                    if seed % 4 == 2:
                        raise KeyError(seed)

        tasks = [asyncio.create_task(read(seed)) for seed in range(100)]
        await until(lambda: lane.num_open == 25 and len(lane.requests) == 100)  # those that hang
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: lane.num_open == 0)
        kinds = [type(end) for end in ends]
        assert kinds == [type(None), type(None), KeyError, asyncio.CancelledError] * 25
        assert len(lane.disconnects) == 75
