"""How a scripted lane ends: what still runs, and what its script did wrong."""

from __future__ import annotations

import asyncio
import gc
import socket

import aiohttp
import pytest

from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Fault, Recorded, Reply
from runtimes.test_runtimes_scripted import CHAT, lane_and_client, until


async def test_the_end_of_the_block_ends_hanging_exchanges() -> None:
    """A lane that stops drops its connections, as a killed process does; its port may be taken again."""
    async with aiohttp.ClientSession() as client:
        async with ScriptedLane(lambda _: Reply(steps=(Fault.HANG,))) as lane:
            task = asyncio.create_task(client.post(lane.url + CHAT))
            await until(lambda: lane.num_open == 1)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await task
        async with ScriptedLane(port=lane.port) as again:
            assert (await client.get(again.url + "/ready")).status == 200


async def test_a_connection_that_arrives_as_the_block_ends_is_closed() -> None:
    """A connection nobody has served yet is closed too, not left to the garbage collector's complaint."""
    async with ScriptedLane() as lane:
        client = socket.create_connection(("127.0.0.1", lane.port))
        while not lane.num_connections:
            await asyncio.sleep(0)
    with client:
        client.settimeout(5)
        assert client.recv(1) == b""
    gc.collect()


@pytest.mark.parametrize("num_turns", range(6))
async def test_a_connection_that_ends_with_the_block_is_closed(num_turns: int) -> None:
    """A client may leave in the same turn of the loop."""
    async with ScriptedLane() as lane:
        with socket.create_connection(("127.0.0.1", lane.port)) as client:
            client.sendall(b"GET /ready HTTP/1.1\r\n\r\n")
            await until(lambda: lane.requests and not lane.num_open)
        for _ in range(num_turns):
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()


async def test_an_error_in_the_script_is_raised_at_the_end() -> None:
    """A mistake in a test's script does not pass for a fault of the lane."""

    def broken(_: Recorded) -> Reply:
        raise KeyError("mistake")

    with pytest.raises(KeyError, match="mistake"):
        async with lane_and_client(reply=broken) as (lane, client):
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await client.post(CHAT)
            assert lane.num_open == 0
