"""A client that leaves, at any moment, is noticed at once, and the lane is told."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from gateway.world import CHAT, SOON, eventually, world
from outrider.config import AdmissionSection
from outrider.runtimes.scripted_replies import Fault, Reply

EVENTS = (("Content-Type", "text/event-stream"),)
JSON = (("Content-Type", "application/json"),)
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'


def generations(w):
    return [one for one in w.scripted.requests if one.path == CHAT]


async def assert_was_left(w):
    """The lane sees the connection close and the abort of exactly this request, soon; everything is free again."""
    assert await eventually(lambda: w.scripted.disconnects and w.scripted.aborted and w.outcomes) < SOON
    assert w.scripted.aborted == [generations(w)[0].json()["rid"]]
    assert w.gateway.admission.num_in_flight == 0
    assert w.lane.num_in_flight == 0
    assert [outcome.status for _, outcome in w.outcomes] == [499]
    assert await w.metric('outrider_aborts_sent_total{result="delivered"}') == 1


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "silent-prefill"])
@pytest.mark.parametrize("steps", [(Fault.HANG,), (b"", Fault.HANG)], ids=["no-head", "head-only"])
async def test_leaving_before_anything_was_said(is_stream, steps):
    """Whole answers and streams whose lane is silent, with and without the lane's head."""
    headers = EVENTS if is_stream else JSON
    async with world(lambda _request: Reply(200, headers, steps)) as w:

        async def ask():
            async with w.chat(stream=is_stream) as response:
                await response.read()

        asking = asyncio.create_task(ask())
        await eventually(lambda: generations(w))
        await asyncio.sleep(0.05)
        asking.cancel()
        await assert_was_left(w)


async def test_leaving_mid_stream(caplog):
    """After some events, while the lane is silent; the access log has 499, which no client is told."""
    caplog.set_level(logging.INFO, "outrider.access")
    async with world(lambda _request: Reply(200, EVENTS, (DELTA, DELTA, Fault.HANG))) as w:
        response = await w.chat(stream=True)
        await response.content.readuntil(b"\n\n")
        response.close()
        await assert_was_left(w)
        assert await w.metric('outrider_requests_total{route="/v1/chat/completions",status="499"}') == 1
    lines = [json.loads(one.message) for one in caplog.records if one.name == "outrider.access"]
    assert [one["status"] for one in lines if one["route"] == CHAT] == [499]


async def test_leaving_while_events_flow():
    """The lane writes all the time; it is stopped all the same."""
    steps = (DELTA, 0.005) * 2000
    async with world(lambda _request: Reply(200, EVENTS, steps)) as w:
        response = await w.chat(stream=True)
        await response.content.readuntil(b"\n\n")
        response.close()
        await assert_was_left(w)


async def test_leaving_a_whole_answer_half_way():
    """The lane has sent a part of the body."""
    async with world(lambda _request: Reply(200, JSON, (b'{"id":', b'"x",', Fault.HANG))) as w:
        asking = asyncio.create_task(w.chat().__aenter__())
        await eventually(lambda: generations(w))
        await asyncio.sleep(0.05)
        asking.cancel()
        await assert_was_left(w)


async def test_leaving_the_queue():
    """A request that waits for a place leaves no trace, and the next one gets the place."""
    limits = AdmissionSection(max_in_flight=1)
    async with world(lambda _request: Reply(200, EVENTS, (DELTA, Fault.HANG)), admission=limits) as w:
        first = await w.chat(stream=True)
        await first.content.readuntil(b"\n\n")
        queued = asyncio.create_task(w.chat(stream=True).__aenter__())
        await eventually(lambda: w.gateway.admission.num_queued == 1)
        queued.cancel()
        assert await eventually(lambda: w.gateway.admission.num_queued == 0) < SOON
        assert len(generations(w)) == 1
        third = asyncio.create_task(w.chat(stream=True).__aenter__())
        await eventually(lambda: w.gateway.admission.num_queued == 1)
        first.close()
        response = await third
        assert await response.content.readuntil(b"\n\n") == DELTA
        response.close()
        await eventually(lambda: w.gateway.admission.num_in_flight == 0)
        assert [outcome.status for _, outcome in w.outcomes] == [499, 499, 499]


async def test_a_finished_answer_is_not_aborted():
    """Neither a stream nor a whole answer that was read to its end."""
    async with world() as w:
        for is_stream in (False, True):
            async with w.chat(stream=is_stream) as response:
                await response.read()
        await asyncio.sleep(0.05)
        assert w.scripted.aborted == []
        assert w.scripted.disconnects == []
