"""A request ends with its deadline and with its lane, whatever the lane and the client do."""

from __future__ import annotations

import asyncio
import socket

import orjson
import pytest

from gateway.world import CHAT, MESSAGES, eventually, world
from outrider.runtimes.scripted_replies import Fault, Reply

EVENTS = (("Content-Type", "text/event-stream"),)
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
#: More than the buffers between two sockets hold.
FLOOD = (DELTA.replace(b'"a"', b'"' + b"a" * 200_000 + b'"'),) * 100


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("steps", [(Fault.HANG,), (b"", Fault.HANG)], ids=["no-head", "head-only"])
async def test_a_silent_request_ends_with_its_lane(is_stream, steps):
    """With a typed error that may be tried again and says nothing of the lane's inside; everything is free again."""
    async with world(lambda _request: Reply(200, EVENTS, steps)) as w:
        asking = asyncio.create_task(w.chat(stream=is_stream).__aenter__())
        await eventually(lambda: any(one.path == CHAT for one in w.scripted.requests))
        await asyncio.sleep(0.05)
        w.lane.fails("its machine is gone")
        async with await asyncio.wait_for(asking, 60) as response:
            error = (await response.json())["error"]
        assert (response.status, response.headers["x-should-retry"]) == (502, "true")
        assert (error["code"], error["message"]) == ("lane_failed", "lane scripted failed")
        assert (w.gateway.admission.num_in_flight, w.lane.num_in_flight, w.lane.on_failure) == (0, 0, set())
        assert [outcome.error_code for _, outcome in w.outcomes] == ["lane_failed"]


async def test_a_stream_that_has_begun_ends_with_its_lane():
    """The error is its last event; a lane that fails twice, or after a request's end, is no matter."""
    async with world(lambda _request: Reply(200, EVENTS, (DELTA, Fault.HANG))) as w:
        async with w.chat(stream=True) as response:
            await response.content.readuntil(b"\n\n")
            w.lane.fails("gone")
            w.lane.fails("gone for good")
            got = await asyncio.wait_for(response.read(), 60)
        assert b'"code":"lane_failed"' in got
        w.lane.fails("gone")
        assert [outcome.error_code for _, outcome in w.outcomes] == ["lane_failed"]


def ask_without_reading(w, *headers: bytes):
    """A client that sends a request for a stream and reads nothing."""
    host, port = w.gateway.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    body = orjson.dumps({"messages": MESSAGES, "stream": True})
    lines = (b"Host: x", b"Content-Type: application/json", b"Content-Length: %d" % len(body), *headers)
    client.sendall(b"\r\n".join((b"POST /v1/chat/completions HTTP/1.1", *lines, b"", body)))
    return client


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_deadline_holds_for_a_client_that_does_not_read(leaves):
    """It is what ended the request, also when the client leaves while it is being told; the place is free again."""
    async with world(lambda _request: Reply(200, EVENTS, (*FLOOD, Fault.HANG))) as w:
        client = ask_without_reading(w, b"x-outrider-deadline-ms: 400")
        try:
            await eventually(lambda: w.lane.num_in_flight)
            if leaves:
                await asyncio.sleep(0.7)
                client.close()
            await eventually(lambda: w.outcomes)
        finally:
            client.close()
        assert [(one.status, one.error_code) for _, one in w.outcomes] == [(504, "deadline_exceeded")]
        assert w.gateway.admission.num_in_flight == 0
        await eventually(lambda: w.scripted.aborted)


async def test_leaving_without_having_read_is_leaving():
    """Before the deadline it is the client that ended it."""
    async with world(lambda _request: Reply(200, EVENTS, (*FLOOD, Fault.HANG))) as w:
        client = ask_without_reading(w, b"x-outrider-deadline-ms: 5000")
        await eventually(lambda: w.lane.num_in_flight)
        await asyncio.sleep(0.1)
        client.close()
        await eventually(lambda: w.outcomes)
        assert [one.status for _, one in w.outcomes] == [499]
