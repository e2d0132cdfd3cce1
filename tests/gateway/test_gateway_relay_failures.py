"""Lanes that fail, before the first event, after it, or without a stream."""

from __future__ import annotations

import pytest

from gateway.test_gateway_relay import DELTA, DONE, FINISH, JSON, events_of, streams
from gateway.world import eventually, world
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Fault, Reply, error_event, error_reply, event, json_reply


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("shape", ["flat", "object", "text"])
@pytest.mark.parametrize("status", [400, 422, 500, 503])
async def test_a_lanes_error_status_passes_with_its_message(is_stream, shape, status):
    """In any of SGLang's shapes, as an error of ours with a string code."""
    reply = lambda _request: error_reply(status, shape, "input is too long")  # noqa: E731
    async with world(reply) as w, w.chat(stream=is_stream) as response:
        error = (await response.json())["error"]
        assert (response.status, error["message"]) == (status, "input is too long")
        assert error["code"] is None or isinstance(error["code"], str)
        assert response.headers["x-outrider-lane"] == "scripted"


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ([("retry-after-ms", "250"), ("Retry-After", "9")], ("1", "250")),
        ([("Retry-After", "7")], ("7", "7000")),
        ([("Retry-After", "1e999")], (None, None)),
        ([], (None, None)),
    ],
)
async def test_the_pause_that_a_lane_asks_for_is_told(headers, told):
    """In both headers, whichever it has sent; what is no time is not."""
    async with world(lambda _request: error_reply(429, headers=headers)) as w, w.chat() as response:
        assert response.status == 429
        assert (response.headers.get("Retry-After"), response.headers.get("retry-after-ms")) == told


async def test_an_error_that_is_no_json_keeps_its_status():
    """As of a proxy in between."""
    async with world(lambda _request: Reply(502, (), (b"<html>",))) as w, w.chat() as response:
        assert (response.status, (await response.json())["error"]["message"]) == (502, "the lane answered HTTP 502")


EARLY = [
    ((error_event(400, "bad"),), 400),
    ((error_event(503, "full"),), 503),
    ((b'data: {"error":{"message":"m","type":"t","code":"context_length_exceeded"}}\n\n',), 400),
    ((b": ping\n\n", b'data: {"error":"text"}\n\n'), 502),
    ((event({"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}), DONE), 502),
    ((DELTA.replace(b"null", b'"abort"'),), 502),
    ((), 502),
    ((b"", Fault.CLOSE), 502),
    ((Fault.CLOSE,), 502),
    ((Fault.RESET,), 502),
    ((b"data: not a chunk\n\n",), 502),
    ((b'data: {"finish_reason": 1,}\n\n',), 502),
    ((b"no event at all",), 502),
]


@pytest.mark.parametrize(("steps", "status"), EARLY)
async def test_a_failure_before_the_first_event_is_a_status(steps, status):
    """The head is held until there is something to say; whether to ask again is said too."""
    async with world(streams(*steps)) as w, w.chat(stream=True) as response:
        assert response.status == status
        assert response.headers["x-should-retry"] == ("true" if status >= 500 else "false")
        assert set((await response.json())["error"]) == {"message", "type", "param", "code"}


LATE = [
    ((DELTA, Fault.CLOSE), "lane_failed"),
    ((DELTA, Fault.RESET), "lane_failed"),
    ((DELTA,), "lane_failed"),
    ((DELTA, FINISH), "lane_failed"),
    ((DELTA, b"data: {cut"), "lane_failed"),
    ((DELTA, b"data: garbage\n\n", DELTA), "lane_failed"),
    ((DELTA, error_event(503, "full"), DONE), "lane_busy"),
    ((DELTA, event({"choices": [{"index": 0, "finish_reason": "abort"}]}), DONE), "lane_failed"),
    (
        (DELTA, event({"choices": [{"index": 0, "finish_reason": {"type": "abort", "status_code": 503}}]}), DONE),
        "lane_busy",
    ),
]


@pytest.mark.parametrize(("steps", "code"), LATE)
async def test_a_failure_after_the_first_event_is_one_event_and_the_end(steps, code):
    """No [DONE] follows, so that nobody takes the answer for a whole one."""
    steps = (steps[0], 0.05, *steps[1:])
    async with world(streams(*steps)) as w, w.chat(stream=True) as response:
        raw = await response.read()
        assert response.status == 200
        await eventually(lambda: len(w.outcomes) == 1)
        assert w.outcomes[0][1].status >= 500
    assert raw.startswith(DELTA)
    assert b"[DONE]" not in raw
    error = events_of(raw.removeprefix(DELTA))[-1]["error"]
    assert error["code"] == code
    assert raw.count(b'"error"') == 1


async def test_a_held_finish_chunk_is_not_lost_when_the_stream_breaks():
    """What the lane said reaches the client before the error does."""
    async with world(streams(DELTA, FINISH, Fault.CLOSE)) as w, w.chat(stream=True) as response:
        raw = await response.read()
    assert raw.startswith(DELTA + FINISH)
    assert "error" in events_of(raw)[-1]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, JSON, (b"[]",)),
        Reply(200, JSON, (b"{cut",)),
        Reply(200, (*JSON, ("Content-Length", "100")), (b"{", Fault.CLOSE)),
        Reply(200, JSON, (Fault.RESET,)),
        Reply(307, (("Location", "/elsewhere"),), ()),
        json_reply({"error": {"message": "x"}}),
        json_reply({"choices": [{"index": 0, "finish_reason": "abort"}]}),
        json_reply({"choices": [{"index": 0, "finish_reason": {"type": "abort", "message": "x"}}]}),
    ],
)
async def test_a_broken_whole_answer_is_a_bad_gateway(reply):
    """Truncated, no JSON object, redirected, aborted: never a success."""
    async with world(lambda _request: reply) as w, w.chat() as response:
        assert (response.status, (await response.json())["error"]["code"]) == (502, "lane_failed")


async def test_an_abort_with_a_status_keeps_it():
    """A queue that is full at the lane is a 503."""
    reason = {"type": "abort", "message": "The request queue is full.", "status_code": 503}
    body = {"choices": [{"index": 0, "finish_reason": reason}]}
    async with world(lambda _request: json_reply(body)) as w, w.chat() as response:
        assert (response.status, (await response.json())["error"]["message"]) == (503, "The request queue is full.")


async def test_a_stream_that_is_answered_whole_is_a_bad_gateway():
    """A lane that ignores `stream` must not hang the reader of events."""
    async with world(lambda _request: json_reply({"choices": []})) as w, w.chat(stream=True) as response:
        assert response.status == 502


async def test_a_lane_that_died_is_a_bad_gateway_then_unavailable():
    """Refused connections are the lane's failure; a while later the lane counts as failed."""
    async with world() as w:
        async with ScriptedLane() as gone:
            w.lane.url = gone.url
        async with w.chat() as response:
            assert (response.status, (await response.json())["error"]["code"]) == (502, "lane_failed")
        await eventually(lambda: not w.lane.is_ready)
        async with w.chat() as response:
            assert (response.status, (await response.json())["error"]["code"]) == (503, "lane_unavailable")
