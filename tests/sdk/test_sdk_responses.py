"""Responses: asked for, streamed, kept, taken up again; and every way in which one fails."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import pytest
from sdk_wire import REPORT, SOON, stream_of

from outrider import ConnectionFailed, StreamState, errors
from outrider.runtimes.scripted_replies import Fault, Recorded, Reply, event, json_reply

ROUTE = "/v1/responses"
KEPT = ROUTE + "/resp_1"
DONE = {
    "id": "resp_1",
    "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "hello"}]}],
    "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
}


def told(kind: str, number: int, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\n" + event({"type": kind, "sequence_number": number, **fields})


EVENTS = [
    told("response.created", 0, response=DONE | {"status": "in_progress", "output": [], "usage": None}),
    told("response.output_text.delta", 1, delta="hel"),
    told("response.reasoning_text.delta", 2, delta="why"),
    told("response.output_text.delta", 3, delta="lo"),
    told("response.completed", 4, response=DONE, outrider=REPORT),
]


def behind(request: Recorded) -> list[bytes]:
    """The events that a request for kept ones gets."""
    after = int(parse_qs(request.query).get("starting_after", ["-1"])[0])
    return EVENTS[after + 1 :]


async def test_a_whole_response(connect: Any) -> None:
    """Texts of its messages are joined; usage, report and items are typed; unknown fields are kept."""
    parts = [{"type": "output_text", "text": "hel"}, {"type": "output_text", "text": "lo"}]
    output = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "why"}]},
        {"type": "message", "id": "m1", "content": parts},
        {"type": "function_call", "name": "f", "arguments": "{}"},
    ]
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    wire = {"id": "resp_1", "status": "completed", "output": output, "usage": usage, "outrider": REPORT}
    async with connect() as (lane, client):
        lane.overrides["/v1/responses"] = json_reply(wire, headers=[("x-request-id", "q2")])
        response = await client.responses("hi", max_tokens=4, k=2, instructions="be brief", store=False)
        sent = lane.requests[0].json()
        lane.overrides["/v1/responses"] = json_reply({"id": "resp_2"})
        with pytest.raises(ConnectionFailed, match="unexpected form"):
            await client.responses([{"role": "user", "content": "hi"}])
    assert (response.id, response.text, response.status, response.request_id) == (
        "resp_1",
        "hello",
        "completed",
        "q2",
    )
    assert response.usage.output_tokens == 2 and response.report.effective.k == 4
    assert response.output[2].model_extra == {"name": "f", "arguments": "{}"} and response.raw == wire
    assert sent == {
        "model": "m", "input": "hi", "stream": False, "max_output_tokens": 4, "outrider": {"k": 2},
        "instructions": "be brief", "store": False,
    }  # fmt: skip


async def test_a_streamed_response(connect: Any) -> None:
    """Its events as they were written, its text, and the whole at the end; the connection is used again."""
    async with connect() as (lane, client):
        lane.overrides[ROUTE] = stream_of(*EVENTS)
        async with client.responses.stream("hi", k=2, max_tokens=4) as stream:
            assert stream.id is None
            events = [event async for event in stream]
            response = await stream.result()
        async with client.responses.stream("hi") as again:
            await again.result()
        sent = lane.requests[0].json()
        assert lane.num_connections == 1 and lane.disconnects == []
    assert [(event.sequence_number, event.delta) for event in events] == [
        (0, None), (1, "hel"), (2, "why"), (3, "lo"), (4, None),
    ]  # fmt: skip
    assert events[4].type == "response.completed" and events[4].model_extra["response"] == DONE
    assert (stream.text, stream.id, stream.state, stream.request_id) == ("hello", "resp_1", StreamState.ENDED, "q9")
    assert (response.text, response.usage.output_tokens, response.report.effective.k) == ("hello", 2, 4)
    assert sent == {"model": "m", "input": "hi", "stream": True, "max_output_tokens": 4, "outrider": {"k": 2}}


async def test_an_end_marker_behind_the_last_event_is_no_harm(connect: Any) -> None:
    """Some servers write one."""
    async with connect() as (lane, client):
        lane.overrides[ROUTE] = stream_of(*EVENTS, b"data: [DONE]\n\n")
        for _ in range(2):
            async with client.responses.stream("hi") as stream:
                assert (await stream.result()).status == "completed"
        assert lane.num_connections == 1


FIELDS = {"code": "lane_failed", "message": "the lane died", "param": None}


@pytest.mark.parametrize(
    "last",
    [
        told("error", 2, **FIELDS),
        event({"error": FIELDS}),
        told("response.failed", 2, response=DONE | {"status": "failed", "error": FIELDS}),
    ],
    ids=["of OpenAI", "bare", "failed"],
)
async def test_an_error_inside_the_stream(connect: Any, until: Any, last: bytes) -> None:
    """In each of its shapes it is raised as its class, with the request id, after what came before."""
    async with connect() as (lane, client):
        lane.overrides[ROUTE] = stream_of(*EVENTS[:2], last, Fault.HANG)
        async with client.responses.stream("hi") as stream:
            with pytest.raises(errors.LaneFailed, match="the lane died") as caught:
                await stream.result()
        assert (caught.value.request_id, stream.text, stream.state) == ("q9", "hel", StreamState.CLOSED)
        await until(lambda: lane.num_open == 0)


@pytest.mark.parametrize("data", [b"data: 3\n\n", b"data: {}\n\n", b"data: [DONE]\n\n", b""])
async def test_what_is_no_response_s_end_is_a_failure(connect: Any, data: bytes) -> None:
    """Nonsense, and a stream that ends without its last event."""
    async with connect() as (lane, client):
        lane.overrides[ROUTE] = stream_of(*EVENTS[:4], data)
        with pytest.raises(ConnectionFailed):
            async with client.responses.stream("hi") as stream:
                await stream.result()
        assert len(lane.requests) == 1


async def test_leaving_a_streamed_response_frees_the_connection(connect: Any, until: Any) -> None:
    """By break, while more is to come."""
    async with connect() as (lane, client):
        lane.overrides[ROUTE] = stream_of(*EVENTS[:2], Fault.HANG)
        async with client.responses.stream("hi") as stream:
            async for _ in stream:
                break
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)


async def test_kept_responses(connect: Any) -> None:
    """Shown, cancelled, deleted; ids are escaped, and one that is not there is named."""
    async with connect() as (lane, client):
        lane.overrides[KEPT] = json_reply(DONE | {"outrider": REPORT}, headers=[("x-request-id", "q3")])
        cancelled = DONE | {"status": "cancelled", "error": {"code": "cancelled", "message": "gone"}}
        lane.overrides[KEPT + "/cancel"] = json_reply(cancelled)
        shown = await client.responses.get("resp_1")
        ended = await client.responses.cancel("resp_1")
        await client.responses.delete("resp_1")
        asked = [(request.method, request.path) for request in lane.requests]
        lane.overrides[ROUTE + "/a%2Fb"] = json_reply(errors.RunNotFound("not there").to_wire(), 404)
        with pytest.raises(errors.RunNotFound, match="not there"):
            await client.responses.get("a/b")
    assert (shown.text, shown.request_id, shown.error, shown.report.lane) == ("hello", "q3", None, "embedded")
    assert (ended.status, ended.error) == ("cancelled", {"code": "cancelled", "message": "gone"})
    assert asked == [("GET", KEPT), ("POST", KEPT + "/cancel"), ("DELETE", KEPT)]


async def test_all_input_items_are_given(connect: Any) -> None:
    """Page by page; what a page repeats or leaves out ends it."""
    items = [{"id": f"i{n}", "type": "message", "content": [], "role": "user"} for n in range(3)]
    pages = [{"data": items[:2], "has_more": True}, {"data": items[2:], "has_more": False}]
    async with connect() as (lane, client):
        lane.overrides[KEPT + "/input_items"] = lambda _: json_reply(pages[len(lane.requests) - 1])
        found = await client.responses.input_items("resp_1", order="desc")
        asked = [parse_qs(request.query) for request in lane.requests]
        lane.overrides[KEPT + "/input_items"] = json_reply({"data": [], "has_more": True})
        assert await client.responses.input_items("resp_1") == []
        lane.overrides[KEPT + "/input_items"] = json_reply(pages[0])  # again and again, whatever is behind
        assert [item.id for item in await client.responses.input_items("resp_1")] == ["i0", "i1"]
    assert [(item.id, item.type, item.model_extra) for item in found] == [
        (f"i{n}", "message", {"role": "user"}) for n in range(3)
    ]
    assert asked == [{"limit": ["100"], "order": ["desc"]}, {"limit": ["100"], "order": ["desc"], "after": ["i1"]}]


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_events_are_taken_up_again(connect: Any, count: int) -> None:
    """Wherever the connection breaks, nothing is lost or repeated."""
    async with connect() as (lane, client):
        lane.overrides[KEPT] = lambda request: (
            stream_of(*behind(request)[:count], 0.01, Fault.CLOSE) if count else stream_of(*behind(request))
        )
        async with client.responses.events("resp_1") as stream:
            numbers = [event.sequence_number async for event in stream]
            assert (stream.text, stream.last_event_id) == ("hello", 4)
        asked = [parse_qs(request.query).get("starting_after") for request in lane.requests]
    assert numbers == [0, 1, 2, 3, 4]
    assert asked == ([None] if not count else [None, *([str(n)] for n in range(count - 1, 4, count))])


async def test_events_from_the_middle_on(connect: Any) -> None:
    """A reader that comes later goes on where it was."""
    async with connect() as (lane, client):
        lane.overrides[KEPT] = lambda request: stream_of(*behind(request))
        async with client.responses.events("resp_1", after=2) as stream:
            assert (await stream.result()).id == "resp_1" and stream.text == "lo"
        assert parse_qs(lane.requests[0].query) == {"stream": ["true"], "starting_after": ["2"]}


async def test_behind_the_last_event_there_is_nothing(connect: Any) -> None:
    """A reader that has seen all of an ended response is told so, and asks no more."""
    async with connect() as (lane, client):
        lane.overrides[KEPT] = Reply(204)
        async with client.responses.events("resp_1", after=4) as stream:
            assert [event async for event in stream] == []
        assert len(lane.requests) == 1


async def test_a_response_in_the_background_is_not_begun_twice(connect: Any) -> None:
    """Whoever breaks the connection may have begun it; another may be asked for again."""
    broken, good = Reply(200, (), (b"", Fault.CLOSE)), json_reply(DONE)
    async with connect() as (lane, client):
        for fields, num_requests in (({"background": True}, 1), ({}, 2)):
            replies = iter([broken, good])
            lane.overrides[ROUTE] = lambda _, replies=replies: next(replies)
            lane.requests.clear()
            if num_requests == 1:
                with pytest.raises(ConnectionFailed):
                    await client.responses("hi", **fields)
            else:
                await client.responses("hi", **fields)
            assert len(lane.requests) == num_requests
        refusals = iter([json_reply({}, 503, [SOON]), json_reply(DONE | {"status": "queued", "output": []})])
        lane.overrides[ROUTE] = lambda _: next(refusals)
        assert (await client.responses("hi", background=True)).status == "queued"
        assert lane.requests[-1].json()["background"] is True
