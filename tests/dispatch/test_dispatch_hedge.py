"""A second lane that is asked beside a silent one: who answers, who is aborted, and what is counted."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from dispatch.test_dispatch_retry import DELTA, EVENTS, lanes
from gateway.world import CHAT, SOON, eventually
from outrider.config import PolicySection
from outrider.core import LaneLoad
from outrider.runtimes.breaker import MAX_FAILURES
from outrider.runtimes.scripted_replies import Fault, Reply, chat_reply, error_reply

HANG = Reply(200, EVENTS, (b"", Fault.HANG))
SILENT = Reply(steps=(Fault.HANG,))
POLICY = "version: 1\nworkload: default\ndrafters: {}\n"


def later(speaks, *steps):
    """A lane that says this once it may."""
    return Reply(200, EVENTS, (speaks, *(steps or chat_reply(stream=True).steps)))


async def asking_two(two):
    """A request that two lanes have."""
    asking = asyncio.create_task(two.post(stream=True).__aenter__())
    await eventually(lambda: all(two.rids()[:2]))
    return asking


@asynccontextmanager
async def hedging(folder, *replies, after_ms=40, **limits):
    """Lanes of which the first is asked first, under a policy that hedges."""
    (folder / "default.yaml").write_text(f"{POLICY}hedge_after_ms: {after_ms}\n")
    async with lanes(*replies, policy=PolicySection(directories=(folder,)), **limits) as two:
        await eventually(lambda: all(lane.load() is not None for lane in two.gateway.pool.lanes))
        yield two


def aborted(two):
    return [lane.aborted for lane in two.scripted]


def report(body):
    return body["outrider"]["hedged"], body["outrider"]["lane"]


@pytest.mark.parametrize("silent", [SILENT, HANG, Reply(steps=(60.0, *chat_reply(stream=False).steps))])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_lane_that_is_faster_answers_and_the_silent_one_is_aborted(tmp_path, silent, stream):
    """Each attempt has an id of its own; one outcome; the client sees one answer."""
    async with hedging(tmp_path, silent, chat_reply(stream=stream)) as two:
        async with two.post(stream=stream, temperature=0) as response:
            text = await response.text()
            assert (response.status, response.headers["x-outrider-lane"]) == (200, "lane1")
        assert '"hedged":["lane0","lane1"]' in text and "lane lane0 was silent, so lane lane1 was asked too" in text
        ((first,), (second,)) = two.rids()
        assert first != second and len(first) == len(second) == 32
        await eventually(lambda: aborted(two) == [[first], []] and len(two.scripted[0].disconnects) == 1)
        assert [one.status for one in two.outcomes] == [200]
        assert await two.metric('outrider_lane_attempts_total{lane="lane0",result="left"}') == 1
        assert await two.metric('outrider_lane_attempts_total{lane="lane1",result="answered"}') == 1


async def test_the_first_lane_wins_when_it_speaks_first(tmp_path):
    """The second one is aborted at once, long before the answer ends."""
    speaks, ends = asyncio.Event(), asyncio.Event()
    slow = later(speaks, DELTA, ends, *chat_reply(stream=True).steps)
    async with hedging(tmp_path, slow, SILENT) as two:
        asking = await asking_two(two)
        speaks.set()
        async with await asking as response:
            await response.content.readuntil(b"\n\n")
            assert await eventually(lambda: len(aborted(two)[1]) == len(two.scripted[1].disconnects) == 1) < SOON
            assert [lane.num_in_flight for lane in two.gateway.pool.lanes] == [1, 0]
            ends.set()
            text = await response.text()
            assert response.headers["x-outrider-lane"] == "lane0" and '"hedged":["lane0","lane1"]' in text
            assert aborted(two) == [[], two.rids()[1]]


async def test_both_slow_lanes_are_waited_for_and_no_third_is_asked(tmp_path):
    """The one that speaks first is it, whoever was asked first."""
    speaks = asyncio.Event()
    async with hedging(tmp_path, later(asyncio.Event()), later(speaks), None) as three:
        asking = await asking_two(three)
        speaks.set()
        async with await asking as response:
            assert '"lane":"lane1"' in await response.text()
        assert [len(ids) for ids in three.rids()] == [1, 1, 0]


async def test_a_client_that_leaves_leaves_both(tmp_path):
    """Both are told, nothing is left in flight, and it is one outcome."""
    async with hedging(tmp_path, SILENT, HANG) as two:
        asking = asyncio.create_task(two.post(stream=True).__aenter__())
        await eventually(lambda: all(two.rids()))
        asking.cancel()
        is_told = lambda: aborted(two) == two.rids() and all(one.disconnects for one in two.scripted)  # noqa: E731
        assert await eventually(is_told) < SOON
        await eventually(lambda: two.outcomes)
        assert [one.status for one in two.outcomes] == [499]
        for i in range(2):
            assert await two.metric(f'outrider_lane_attempts_total{{lane="lane{i}",result="left"}}') == 1


@pytest.mark.parametrize("failing", [0, 1])
async def test_one_that_fails_beside_a_silent_one_is_not_the_end(tmp_path, failing):
    """Its failure counts for its lane; the other one's answer is the answer."""
    breaks, speaks = asyncio.Event(), asyncio.Event()
    replies = [Reply(200, EVENTS, (b"", breaks, Fault.CLOSE)), later(speaks)]
    async with hedging(tmp_path, *(replies if failing == 0 else replies[::-1])) as two:
        asking = await asking_two(two)
        breaks.set()
        await asyncio.sleep(0.05)
        speaks.set()
        async with await asking as response:
            assert f'"lane":"lane{1 - failing}"' in await response.text()
        assert [lane.breaker.num_failures for lane in two.gateway.pool.lanes] == [1 - failing, failing]


async def test_where_both_fail_the_last_error_is_the_answer(tmp_path):
    """Neither is asked again: the second attempt was the one more that is allowed."""
    fails = Reply(200, EVENTS, (b"", 0.1, Fault.CLOSE))
    async with hedging(tmp_path, fails, fails) as two, two.post(stream=True) as response:
        assert (response.status, response.headers["x-outrider-lane"]) == (502, "lane1")
        assert [len(ids) for ids in two.rids()] == [1, 1]
        assert [lane.breaker.num_failures for lane in two.gateway.pool.lanes] == [1, 1]


async def test_a_refusal_of_the_request_is_an_answer(tmp_path):
    """The other lane would say the same."""
    async with hedging(tmp_path, SILENT, error_reply(400)) as two, two.post(temperature=0) as response:
        assert response.status == 400
        await eventually(lambda: aborted(two) == [two.rids()[0], []])


async def test_nothing_is_hedged_that_need_not_or_cannot_be(tmp_path):
    """Off by default; not in time; not to a lane that is full, of unknown load, or left out by its breaker."""
    slow = Reply(200, EVENTS, (0.15, *chat_reply(stream=True).steps))

    async def asked(two):
        async with two.post(stream=True) as response:
            text = await response.text()
            assert "hedged" not in text and '"lane":"lane0"' in text
        return [len(ids) for ids in two.rids()]

    (tmp_path / "default.yaml").write_text(POLICY)
    async with lanes(slow, None, policy=PolicySection(directories=(tmp_path,))) as two:
        assert await asked(two) == [1, 0]
    async with hedging(tmp_path, slow, None, after_ms=5000) as two:
        assert await asked(two) == [1, 0]
    async with hedging(tmp_path, slow, None) as two:
        second = two.gateway.pool.lanes[1]
        for load in (LaneLoad(16, 3, 16, time.monotonic()), None):
            second.reports(load)
            two.scripted[1].load = None if load is None else {"num_running_reqs": 16, "num_waiting_reqs": 3}
            await asked(two)
        assert [len(ids) for ids in two.rids()] == [2, 0]
    async with hedging(tmp_path, slow, None) as two:
        for _ in range(MAX_FAILURES):
            two.gateway.pool.lanes[1].breaker.failed(time.monotonic(), time.monotonic())
        assert await asked(two) == [1, 0]


async def test_no_lane_that_honours_less_is_asked_beside_another(tmp_path):
    """A hedge changes no law; and the conversation stays where it is."""
    slow = Reply(200, EVENTS, (0.15, *chat_reply(stream=True).steps))
    async with hedging(tmp_path, slow, None) as two:
        second = two.gateway.pool.lanes[1]
        less = replace(second.abilities, surfaces=second.abilities.surfaces - {"min_p"})
        second.becomes_ready(second.models, less)
        await eventually(lambda: second.load() is not None)
        for messages in (("hello",), ("hello", "there", "again")):
            async with two.post(messages, stream=True, temperature=0.5, min_p=0.1) as response:
                text = await response.text()
                assert "hedged" not in text and '"lane":"lane0"' in text
        assert [len(ids) for ids in two.rids()] == [2, 0]


async def test_a_stream_that_has_begun_is_never_hedged(tmp_path):
    """However long it is silent after its first byte."""
    slow = Reply(200, EVENTS, (DELTA, 0.7, *chat_reply(stream=True).steps))
    async with hedging(tmp_path, slow, None, after_ms=500) as two, two.post(stream=True) as response:
        assert "hedged" not in await response.text()
        assert [sum(one.path == CHAT for one in lane.requests) for lane in two.scripted] == [1, 0]


async def test_a_hedged_request_ends_with_its_deadline(tmp_path):
    """At both lanes."""
    async with hedging(tmp_path, SILENT, SILENT) as two:
        async with two.post(temperature=0, headers={"x-outrider-deadline-ms": "1000"}) as response:
            assert response.status == 504
        await eventually(lambda: aborted(two) == two.rids() and all(aborted(two)))


async def test_a_drawn_answer_that_comes_whole_is_not_hedged(tmp_path):
    """Lanes send it when it is finished, so the faster of two would be the shorter, and the law another one."""
    slow = Reply(steps=(0.3, *chat_reply(stream=False).steps))
    async with hedging(tmp_path, slow, None) as two, two.post(temperature=0.5) as response:
        assert response.headers["x-outrider-lane"] == "lane0" and "hedged" not in await response.text()
        assert two.rids()[1] == []
