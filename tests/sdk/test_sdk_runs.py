"""Runs in the background: begun, shown, cancelled, and followed over broken connections without a gap or a repeat."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sdk_wire import DONE, SOON, delta

from outrider import ConnectionFailed, Finished, TextDelta, errors
from outrider.runtimes.scripted_replies import Fault, Recorded, Reply, event, json_reply

RUN = {
    "id": "run_1",
    "object": "outrider.run",
    "status": "queued",
    "created_at": 1.5,
    "num_events": 0,
    "route": "/v1/chat/completions",
    "request_id": "q1",
}
EVENTS = [delta(content=piece) for piece in "abcd"] + [delta("stop"), DONE]
PATH = "/outrider/runs/run_1"


def numbered(after: int, events: list[bytes] = EVENTS) -> list[bytes]:
    return [b"id: %d\n%b" % (n, data) for n, data in enumerate(events, 1) if n > after]


def stream(*steps: bytes | float | Fault) -> Reply:
    return Reply(200, (("Content-Type", "text/event-stream"),), steps)


def broken_after(count: int) -> Any:
    """Gives so many events behind the asked number, then breaks the connection; all when that is 0."""

    def reply(request: Recorded) -> Reply:
        events = numbered(int(request.headers.get("last-event-id", 0)))
        return stream(*events) if not count else stream(*events[:count], 0.01, Fault.CLOSE)

    return reply


async def test_a_run_is_begun_shown_cancelled_and_deleted(connect: Any) -> None:
    """The body of a streamed chat with our flag; results are typed and keep what is unknown."""
    async with connect() as (lane, client):
        lane.reply = lambda _: json_reply(RUN, 202)
        lane.overrides[PATH] = lambda request: json_reply(RUN | {"status": "completed", "ended_at": 2.0})
        lane.overrides[PATH + "/cancel"] = json_reply(RUN | {"status": "cancelled", "error": {"message": "gone"}})
        run = await client.runs.start("Write.", priority="bulk", task="creative", temperature=1)
        shown = await client.runs.get(run.id)
        ended = await client.runs.cancel(run.id)
        await client.runs.delete(run.id)
        sent = lane.requests[0]
    assert (run.status, run.is_over, run.created_at, run.request_id) == ("queued", False, 1.5, "q1")
    assert run.model_extra == {"object": "outrider.run", "route": "/v1/chat/completions"}
    assert shown.is_over and shown.ended_at == 2.0
    assert ended.is_over and ended.error == {"message": "gone"}
    body = sent.json()
    assert body["outrider"] == {"task": "creative", "background": True} and body["stream"] is True
    assert sent.headers["x-outrider-priority"] == "bulk"
    assert [(r.method, r.path) for r in lane.requests[1:]] == [
        ("GET", PATH), ("POST", PATH + "/cancel"), ("DELETE", PATH),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 2, 3])
async def test_a_broken_connection_is_taken_up_again(connect: Any, count: int) -> None:
    """The text is whole wherever it breaks, and each request asks for what is behind the last event."""
    async with connect() as (lane, client):
        lane.overrides[PATH + "/events"] = broken_after(count)
        async with client.runs.events("run_1") as followed:
            events = [event async for event in followed]
        asked = [request.headers.get("last-event-id") for request in lane.requests]
    assert events[:4] == [TextDelta(piece) for piece in "abcd"]
    assert isinstance(events[4], Finished) and events[4].finish_reason == "stop"
    assert followed.last_event_id == 6
    assert asked == [None] if not count else [None, *map(str, range(count, 6, count))]


async def test_only_what_is_behind_an_event_is_asked_for(connect: Any) -> None:
    """A reader that comes later, elsewhere, goes on where it was."""
    async with connect() as (lane, client):
        lane.overrides[PATH + "/events"] = broken_after(0)
        async with client.runs.events("run_1", after=2) as followed:
            assert (await followed.result()).text == "cd"
        assert lane.requests[0].headers["last-event-id"] == "2"


async def test_a_run_without_further_events_ends_at_once(connect: Any) -> None:
    """204 is the gateway's word for it."""
    async with connect() as (lane, client):
        lane.overrides[PATH + "/events"] = Reply(204)
        async with client.runs.events("run_1", after=6) as followed:
            assert [type(event) async for event in followed] == [Finished]
        assert (await client.runs.result("run_1")).text == ""


async def test_a_run_that_only_breaks_is_given_up(connect: Any) -> None:
    """After `max_retries` breaks without a new event in between."""
    async with connect(max_retries=2) as (lane, client):
        lane.overrides[PATH + "/events"] = lambda request: (
            stream(*numbered(0)[:1], b"", Fault.CLOSE)
            if "last-event-id" not in request.headers
            else stream(b": nothing\n\n", b"", 0.01, Fault.CLOSE)
        )
        with pytest.raises(ConnectionFailed):
            await client.runs.result("run_1")
        assert len(lane.requests) == 3
        assert [request.headers.get("last-event-id") for request in lane.requests[1:]] == ["1"] * 2


async def test_the_error_of_a_run_is_raised(connect: Any) -> None:
    """What was written until then is read first."""
    wire = event(errors.LaneFailed("the lane died").to_wire())
    async with connect() as (lane, client):
        lane.overrides[PATH + "/events"] = stream(*numbered(0, [delta(content="a"), wire]))
        async with client.runs.events("run_1") as followed:
            assert await anext(followed) == TextDelta("a")
            with pytest.raises(errors.LaneFailed, match="died"):
                await anext(followed)


async def test_leaving_a_run_frees_the_connection(connect: Any, until: Any) -> None:
    """By break, while more is to come; a break of the connection then changes nothing."""
    async with connect() as (lane, client):
        lane.overrides[PATH + "/events"] = stream(*numbered(0)[:2], Fault.HANG)
        async with client.runs.events("run_1") as followed:
            async for _ in followed:
                break
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)


async def test_a_gateway_without_runs_says_so(connect: Any) -> None:
    """Its refusal comes through, and ids are escaped."""
    async with connect() as (lane, client):
        lane.reply = lambda _: json_reply(
            errors.InvalidRequest("no store", param="outrider.background").to_wire(), 400
        )
        with pytest.raises(errors.InvalidRequest, match="no store"):
            await client.runs.start("Write.")
        lane.overrides["/outrider/runs/a%2Fb"] = json_reply(errors.LaneUnavailable("busy").to_wire(), 503, [SOON])
        with pytest.raises(errors.LaneUnavailable):
            await client.runs.get("a/b")


@pytest.mark.parametrize(
    "refusal",
    [
        Reply(steps=(Fault.CLOSE,)),
        Reply(202, (), (b"", Fault.CLOSE)),
        json_reply({}, 500, [SOON]),
        json_reply({}, 502, [SOON]),
        json_reply({}, 408, [SOON]),
    ],
    ids=["no head", "no body", "500", "502", "408"],
)
async def test_a_run_that_may_have_begun_is_not_begun_again(connect: Any, refusal: Reply) -> None:
    """Nobody knows whether there is a run already; two would do the work twice."""
    async with connect(refusal, json_reply(RUN, 202)) as (lane, client):
        with pytest.raises(errors.OutriderError):
            await client.runs.start("Write.")
        assert len(lane.requests) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        json_reply({}, 429, [SOON]),
        json_reply({}, 503, [SOON]),
        json_reply({}, 500, [SOON, ("x-should-retry", "true")]),
    ],
    ids=["429", "503", "the server says so"],
)
async def test_a_run_that_was_refused_is_tried_again(connect: Any, refusal: Reply) -> None:
    """It has not begun."""
    async with connect(refusal, json_reply(RUN, 202)) as (lane, client):
        assert (await client.runs.start("Write.")).id == "run_1"
        assert len(lane.requests) == 2


async def test_retries_of_a_run_do_not_multiply(connect: Any) -> None:
    """Breaks of the stream and failures to open it again have one budget, which a new event fills up."""
    async with connect(max_retries=2) as (lane, client):
        lane.overrides[PATH + "/events"] = lambda request: (
            stream(*numbered(0)[:1], b"", Fault.CLOSE)
            if "last-event-id" not in request.headers
            else json_reply({}, 503, [SOON])
        )
        with pytest.raises(errors.OutriderError):
            await client.runs.result("run_1")
        assert len(lane.requests) == 3
    async with connect(max_retries=3) as (lane, client):
        replies = [
            stream(*numbered(0)[:1], b"", Fault.CLOSE),
            json_reply({}, 503, [SOON]),
            stream(b": nothing\n\n", b"", 0.01, Fault.CLOSE),
        ]
        lane.overrides[PATH + "/events"] = lambda _: replies[min(len(lane.requests) - 1, 2)]
        with pytest.raises(ConnectionFailed):
            await client.runs.result("run_1")
        assert len(lane.requests) == 4


async def test_closed_while_it_is_taken_up_again_a_run_is_left(connect: Any, until: Any) -> None:
    """The connection that comes then is dropped, and none is opened after it."""
    async with connect(max_retries=2) as (lane, client):
        lane.overrides[PATH + "/events"] = lambda request: (
            stream(*numbered(0)[:1], b"", Fault.CLOSE)
            if "last-event-id" not in request.headers
            else stream(0.2, *numbered(1)[:1], Fault.HANG)
        )
        async with client.runs.events("run_1") as followed:
            assert await anext(followed) == TextDelta("a")
            going_on = asyncio.ensure_future(anext(followed))
            await until(lambda: len(lane.requests) == 2)
            followed.close()
            with pytest.raises(ConnectionFailed, match="was closed"):
                await going_on
        await until(lambda: lane.num_open == 0)
        assert len(lane.requests) == 2
