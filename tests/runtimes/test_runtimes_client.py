from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

import orjson
import pytest

from gateway.world import eventually
from outrider.errors import LaneFailed
from outrider.policy.plan import Plan
from outrider.runtimes.client import LaneClient, lane_call
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Fault, Reply, json_reply
from outrider.telemetry.metrics import Metrics

EVENTS = (("Content-Type", "text/event-stream"),)
ONE, DONE = b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"
PLAN = Plan("ngram", 3)


def call(is_stream=True):
    return lane_call("/v1/chat/completions", b'{"messages":[]}', PLAN, model=None, is_stream=is_stream)


@asynccontextmanager
async def lane_and_client(*steps, headers=EVENTS):
    async with ScriptedLane(lambda _request: Reply(200, headers, steps)) as scripted, LaneClient(Metrics()) as client:
        yield scripted, client


def generations(scripted):
    return [request for request in scripted.requests if request.path == "/v1/chat/completions"]


async def read_stream(client, url):
    async with client.open("lane", url, call()) as answer, aclosing(answer.packets()) as packets:
        return [[event.raw for event in events] async for events in packets]


def test_the_body_gets_our_members_and_keeps_its_bytes():
    """Plan, statistics and a fresh rid; the client's own rid and our hints go."""
    raw = b'{"a":1.0,"rid":"x","outrider":{"k":1},"return_spec_tokens_details":false,"custom_params":null}'
    first, second = (lane_call("/p", raw, PLAN, model="m", is_stream=True) for _ in range(2))
    assert first.body.startswith(b'{"a":1.0,')
    assert orjson.loads(first.body) == {
        "a": 1.0, "custom_params": {"outrider": {"drafter": "ngram", "k": 3}}, "return_spec_tokens_details": True,
        "rid": first.rid, "model": "m",
    }  # fmt: skip
    assert len(first.rid) == 32 and first.rid != second.rid


async def test_events_that_come_together_are_one_packet():
    """And the stream ends with [DONE]."""
    async with lane_and_client(ONE + ONE, 0.05, ONE, 0.05, DONE) as (scripted, client):
        assert await read_stream(client, scripted.url) == [[ONE, ONE], [ONE], [DONE]]


@pytest.mark.parametrize(
    "steps",
    [(ONE, Fault.CLOSE), (ONE, Fault.RESET), (ONE, 0.05, Fault.GARBAGE), (Fault.GARBAGE,), (ONE, b"data: cut")],
)
async def test_a_broken_stream_is_the_lanes_failure(steps):
    """Closed without an end, reset, or ended inside an event."""
    async with lane_and_client(*steps) as (scripted, client):
        with pytest.raises(LaneFailed, match="lane"):
            await read_stream(client, scripted.url)


@asynccontextmanager
async def replying(*replies):
    """A lane that gives these replies in turn, and a client."""
    left = list(replies)
    async with ScriptedLane(lambda _request: left.pop(0)) as scripted, LaneClient(Metrics()) as client:
        yield scripted, client


GOOD = Reply(200, EVENTS, (ONE, DONE))


async def test_a_connection_that_was_closed_when_used_again_is_tried_anew():
    """Once, with the same body and a fresh id: the lane may close what is idle at any moment."""
    async with replying(GOOD, Reply(steps=(Fault.CLOSE,)), GOOD) as (scripted, client):
        for _ in range(2):
            await read_stream(client, scripted.url)
        _, lost, answered = (request.json() for request in generations(scripted))
        assert len(lost["rid"]) == len(answered["rid"]) == 32
        assert lost.pop("rid") != answered.pop("rid")
        assert lost == answered
        assert scripted.aborted == []


async def test_all_connections_may_be_stale():
    """Until a new one is made; a restarted lane leaves none of the old ones."""
    slow = Reply(200, EVENTS, (ONE, 0.1, DONE))
    lost = Reply(steps=(Fault.CLOSE,))
    async with replying(slow, slow, lost, lost, GOOD) as (scripted, client):
        await asyncio.gather(*(read_stream(client, scripted.url) for _ in range(2)))
        await read_stream(client, scripted.url)
        assert (len(generations(scripted)), scripted.num_connections) == (5, 3)


@pytest.mark.parametrize("first", [(), (GOOD, Reply(steps=(Fault.CLOSE,)))], ids=["new connection", "second try"])
async def test_a_lane_that_breaks_a_new_connection_is_not_asked_again(first):
    """It may have died of the request."""
    async with replying(*first, Reply(steps=(Fault.CLOSE,)), GOOD) as (scripted, client):
        if first:
            await read_stream(client, scripted.url)
        with pytest.raises(LaneFailed):
            await read_stream(client, scripted.url)
        assert len(generations(scripted)) == len(first) + 1


async def test_nothing_is_aborted_that_the_lane_ended():
    """Neither a whole answer nor a stream nor an error."""
    async with lane_and_client(ONE, DONE) as (scripted, client):
        await read_stream(client, scripted.url)
        scripted.reply = lambda _request: json_reply({"x": 1})
        async with client.open("lane", scripted.url, call(is_stream=False)) as answer:
            assert await answer.body() == b'{"x":1}'
        scripted.reply = lambda _request: json_reply({"message": "m"}, 400)
        with pytest.raises(Exception, match="m"):
            async with client.open("lane", scripted.url, call()):
                pass
        await asyncio.sleep(0.05)
        assert scripted.aborted == []


async def test_leaving_early_closes_and_aborts():
    """By an exception in the block, by returning, by cancellation while the head is awaited."""
    async with lane_and_client(ONE, Fault.HANG) as (scripted, client):
        with pytest.raises(RuntimeError):
            async with client.open("lane", scripted.url, call()):
                raise RuntimeError
        await eventually(lambda: len(scripted.disconnects) == 1 and len(scripted.aborted) == 1)
        async with client.open("lane", scripted.url, call()):
            pass
        await eventually(lambda: len(scripted.disconnects) == 2 and len(scripted.aborted) == 2)
        scripted.reply = lambda _request: Reply(200, EVENTS, (Fault.HANG,))
        waiting = asyncio.create_task(read_stream(client, scripted.url))
        # Not by `num_open`, which counts the abort before this one while it is being answered.
        await eventually(lambda: len(generations(scripted)) == 3)
        waiting.cancel()
        await eventually(lambda: len(scripted.disconnects) == 3 and len(scripted.aborted) == 3)
        assert scripted.aborted == [request.json()["rid"] for request in generations(scripted)]


async def test_an_answer_in_an_encoding_is_refused_and_told_to_stop():
    """It was not asked for, and nothing here would read it."""
    encoded = (*EVENTS, ("Content-Encoding", "gzip"))
    async with lane_and_client(b"\x1f\x8b", Fault.HANG, headers=encoded) as (scripted, client):
        with pytest.raises(LaneFailed, match="encoding gzip"):
            await read_stream(client, scripted.url)
        await eventually(lambda: len(scripted.disconnects) == 1 and len(scripted.aborted) == 1)


async def test_an_abort_that_fails_is_counted_and_ignored():
    """The closed connection says the same."""
    async with lane_and_client(ONE, Fault.HANG) as (scripted, client):
        scripted.overrides["/abort_request"] = Reply(500)
        async with client.open("lane", scripted.url, call()):
            pass
        await eventually(lambda: b'outrider_aborts_sent_total{result="failed"} 1.0' in client.metrics.render({}))


async def test_closing_the_client_waits_for_its_aborts():
    """An abort that was started is delivered."""
    async with ScriptedLane(lambda _request: Reply(200, EVENTS, (ONE, Fault.HANG))) as scripted:
        async with LaneClient(Metrics()) as client, client.open("lane", scripted.url, call()):
            pass
        assert len(scripted.aborted) == 1


async def test_a_lane_that_is_not_there_is_the_lanes_failure():
    """Refused at once; nothing can be aborted there."""
    async with ScriptedLane() as gone:
        url = gone.url
    async with LaneClient(Metrics()) as client:
        with pytest.raises(LaneFailed, match="cannot be reached"):
            await read_stream(client, url)
        with pytest.raises(LaneFailed):
            await client.get_json("lane", url, timeout_s=1)


async def test_get_json_gives_status_and_value():
    """None for a body that is no JSON, LaneFailed when the answer takes too long."""
    async with lane_and_client() as (scripted, client):
        scripted.overrides["/a"] = json_reply([1], 503)
        scripted.overrides["/b"] = Reply(200, (), (b"text",))
        scripted.overrides["/c"] = Reply(200, (), (Fault.HANG,))
        assert await client.get_json("lane", scripted.url + "/a", timeout_s=1) == (503, [1])
        assert await client.get_json("lane", scripted.url + "/b", timeout_s=1) == (200, None)
        with pytest.raises(LaneFailed):
            await client.get_json("lane", scripted.url + "/c", timeout_s=0.05)


async def test_a_client_must_be_open():
    """Using it outside its block is a fault of ours, said clearly."""
    with pytest.raises(RuntimeError, match="not open"):
        await LaneClient(Metrics()).get_json("lane", "http://127.0.0.1:9", timeout_s=1)
