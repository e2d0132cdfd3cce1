"""The measuring connection: whole and chunked answers, arrival times, and servers that close."""

from __future__ import annotations

import asyncio
import time

import pytest

from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Fault, Reply
from outrider.workloads.wire import Wire, fetch, get, post

CHAT = "/v1/chat/completions"
REQUEST = post(CHAT, {"messages": []}, "key")


async def test_answers_are_read_to_their_end_on_one_connection():
    """With a length and in chunks, one after another; a value that ends a head like a last chunk does not end it."""
    zero = (("X-Zero", "0"),)
    replies = iter([Reply(200, (), (b"{}",)), Reply(200, zero, (b"a\n", 0.02, b"b\n")), Reply(404, (), (b"no",))])
    async with ScriptedLane(lambda _request: next(replies)) as lane:
        wire = await Wire.connect(lane.url)
        assert await wire.ask(REQUEST) == b"{}"
        assert await wire.ask(REQUEST) == b"2\r\na\n\r\n2\r\nb\n\r\n0\r\n\r\n"
        with pytest.raises(ConnectionError, match="HTTP 404: b'no'"):
            await wire.ask(REQUEST)
        assert lane.num_connections == 1
        assert lane.requests[0].headers["authorization"] == "Bearer key"
        wire.close()


async def test_one_request_on_a_connection_of_its_own():
    """Which is closed behind it."""
    async with ScriptedLane() as lane:
        assert b"scripted" in await fetch(lane.url, get("/v1/models", "key"))
        assert lane.requests[0].headers["authorization"] == "Bearer key"


async def test_the_first_byte_has_its_time():
    """Of the body, not of the head."""
    async with ScriptedLane(lambda _request: Reply(200, (), (b"", 0.1, b"a", 0.4, b"b"))) as lane:
        wire, began_s = await Wire.connect(lane.url), time.monotonic()
        await wire.ask(REQUEST)
        assert 0.1 <= wire.first_s - began_s < time.monotonic() - began_s - 0.05
        wire.close()


async def test_a_server_that_closes_is_an_error():
    """Now and for the next request."""
    async with ScriptedLane(lambda _request: Reply(200, (), (b"a", Fault.CLOSE))) as lane:
        wire = await Wire.connect(lane.url)
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(wire.ask(REQUEST), 60)
