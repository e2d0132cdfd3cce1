"""What a lane may send by mistake, relayed and told anew: a failure of the lane, and never a fault of ours."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.test_gateway_stream import DONE, make_run
from gateway.world import MESSAGES, world
from outrider.errors import APIError, LaneFailed
from outrider.gateway.stream import StreamRelay
from outrider.gateway.translate.messages_answer import MessagesAnswer
from outrider.gateway.translate.relayed import Messages, Responses, TranslatedRelay, translated_body
from outrider.gateway.translate.responses_answer import ResponsesAnswer
from outrider.runtimes.scripted_replies import Reply, event, json_reply
from outrider.sse import SSEDecoder

EVENTS = (("Content-Type", "text/event-stream"),)
BODIES = {"/v1/responses": {"input": "x"}, "/v1/messages": {"messages": MESSAGES, "max_tokens": 3}}
ANSWERS = {
    "/v1/responses": lambda: Responses(ResponsesAnswer("resp_x", {}, "m", 0.0), None),
    "/v1/messages": lambda: Messages(MessagesAnswer({}, "m")),
}
SCALARS = st.sampled_from(
    [None, True, 3, -1, 0.5, "x", "stop", "abort", "response.completed", "message_stop", "error"]
)
NAMES = st.sampled_from([
    "choices", "delta", "message", "content", "reasoning_content", "tool_calls", "function", "arguments", "name",
    "id", "index", "finish_reason", "type", "usage", "prompt_tokens", "prompt_tokens_details", "cached_tokens",
    "sglext", "spec_tokens_details", "spec_verify_ct", "meta_info", "completion_tokens", "matched_stop", "error",
    "code", "response", "status_code", "metrics", "outrider",
])  # fmt: skip
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4))
#: Of the right outer shape, so that what is wrong is further in.
DELTAS = st.dictionaries(NAMES, JSON, max_size=4)
CHOICES = st.fixed_dictionaries(
    {}, optional={"delta": DELTAS, "message": DELTAS, "finish_reason": JSON, "index": JSON}
)
CHUNKS = st.dictionaries(NAMES, JSON, max_size=4) | st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, min_size=1, max_size=2)}, optional={"usage": JSON, "sglext": JSON}
)


@settings(max_examples=200, deadline=None)
@given(st.lists(CHUNKS, max_size=3), st.sampled_from(["/v1/chat/completions", "/generate", *BODIES]))
def test_no_chunk_of_a_lane_is_a_fault_of_ours(chunks, path):
    """Streamed as it is, told anew as a stream, and told anew whole."""
    raw = b"".join(map(event, chunks)) + DONE
    run = make_run()
    run.call = replace(run.call, path=path)
    relay = StreamRelay(run)
    relay.feed(SSEDecoder().feed(raw))
    relay.end()
    for begin in ANSWERS.values():
        told = TranslatedRelay(make_run(), begin())
        told.feed(SSEDecoder().feed(raw))
        told.end()


@settings(max_examples=60, deadline=None)
@given(CHUNKS | st.lists(CHUNKS, max_size=2), st.sampled_from(list(BODIES)))
async def test_no_whole_answer_of_a_lane_is_a_fault_of_ours(answer, path):
    """A list where one was due, too."""
    with suppress(APIError):
        await translated_body(json.dumps(answer).encode(), ANSWERS[path]())


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "bad",
    [
        b'data: {"choices": [\n\n',
        event({"choices": [{"delta": "x"}]}),
        event({"choices": [{"delta": {"content": 3}}]}),
        event({"choices": [{"delta": {"tool_calls": {"a": 1}}}]}),
        event({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {}}}]}}]}),
        event({"choices": [{"delta": {}, "finish_reason": {"type": "stop"}}]}),
    ],
)
async def test_a_malformed_chunk_is_a_bad_gateway_or_the_last_event(path, bad):
    """By a status before anything was told, by an event behind what was told; the lane counts as failed."""
    good = event({"choices": [{"delta": {"content": "told"}}]})
    replies = iter([Reply(200, EVENTS, (bad, DONE)), Reply(200, EVENTS, (good, 0.05, bad, DONE))])
    async with world(lambda _request: next(replies)) as w:
        async with w.post(BODIES[path] | {"stream": True}, path) as response:
            assert response.status == 502
            assert (await response.json())["error"]["code"] == "lane_failed"
        async with w.post(BODIES[path] | {"stream": True}, path) as response:
            *_, delta, last = [json.loads(one.data) for one in SSEDecoder().feed(await response.read())]
        assert response.status == 200 and "told" in json.dumps(delta)
        assert last["type"] == "error" and "lane_failed" in json.dumps(last)
        assert w.lane.breaker.num_failures == 2
        assert [one.status for _, one in w.outcomes] == [502, 502]


async def test_a_malformed_whole_answer_is_a_bad_gateway():
    """Also for the lane's breaker."""
    async with world(lambda _request: json_reply({"choices": [{"message": {"content": []}}]})) as w:
        async with w.post(BODIES["/v1/messages"], "/v1/messages") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (502, "lane_failed")
        assert w.lane.breaker.num_failures == 1


async def test_what_was_told_before_a_malformed_chunk_stays_told():
    """In one packet with it; the failure is the lane's."""
    relay = TranslatedRelay(make_run(), ANSWERS["/v1/messages"]())
    good, bad = event({"choices": [{"delta": {"content": "told"}}]}), event({"choices": [{"delta": []}]})
    assert b"told" in relay.feed(SSEDecoder().feed(good + bad))
    assert isinstance(relay.failure, LaneFailed)
