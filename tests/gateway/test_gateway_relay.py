from __future__ import annotations

import asyncio
import json

import orjson
import pytest

from gateway.world import CHAT, COMPLETIONS, eventually, world
from outrider.core import SpecStats
from outrider.runtimes.scripted_replies import Fault, Reply, chat_reply, json_reply
from outrider.sse import SSEDecoder

EVENTS = (("Content-Type", "text/event-stream"),)
JSON = (("Content-Type", "application/json"),)
STATS = SpecStats(4, 5, (1, 1, 2), num_proposed=8)
DELTA = b'data: {"id" : "x",  "choices":[{"delta":{"content":"\\u00e9 1.0"},"finish_reason":null}],"odd":1e400}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"temperature":1.0}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":7,"total_tokens":8}}\n\n'
DONE = b"data: [DONE]\n\n"


def streams(*steps):
    """A reply of these steps to every request."""
    return lambda _request: Reply(200, EVENTS, steps)


def events_of(raw: bytes) -> list:
    return [json.loads(one.data) for one in SSEDecoder().feed(raw) if one.data not in (None, b"[DONE]")]


def last_of(raw: bytes, is_stream: bool) -> dict:
    """The whole answer, or the stream's finish chunk."""
    if not is_stream:
        return json.loads(raw)
    return next(one for one in events_of(raw) if one["choices"] and one["choices"][0]["finish_reason"])


async def test_the_request_reaches_the_lane_byte_for_byte():
    """Our object goes, our members come; order, numbers, escapes, spaces and unknown fields stay."""
    head = b'{ "messages":[{"role":"user","content":"\\u00e9 \\"rid\\": 1"}], "b":1.0,\n"a" : [1e2, -0.0] ,"c":null'
    raw = head + b', "outrider":{"k":3,"drafter":"ngram"}, "rid":"mine", "custom_params": {"y": 2.50} }'
    async with world() as w:
        async with w.post(raw) as response:
            assert response.status == 200
        sent = w.upstream
    assert sent.body.startswith(head)
    fields = sent.json()
    assert "outrider" not in fields
    assert fields["custom_params"] == {"y": 2.5, "outrider": {"drafter": "ngram", "k": 3}}
    assert b'{ "y": 2.50'.replace(b" ", b"") in sent.body.replace(b" ", b"")
    assert fields["return_spec_tokens_details"] is True
    assert len(fields["rid"]) == 32 and fields["rid"] != "mine"


async def test_each_attempt_has_a_fresh_rid():
    """SGLang refuses a rid that is in use and aborts by it."""
    async with world() as w:
        rids = set()
        for _ in range(3):
            async with w.chat() as response:
                await response.read()
            rids.add(w.upstream.json()["rid"])
        assert len(rids) == 3


async def test_a_stream_is_relayed_byte_for_byte():
    """Comments, odd spacing and numbers included; only the finish chunk gets the report."""
    comment = b": keep-alive\n\n"
    crlf = b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":null}]}\r\n\r\n'
    async with world(streams(DELTA, comment, crlf, FINISH, USAGE + DONE)) as w, w.chat(stream=True) as response:
        got = await response.read()
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no"
    before, after = DELTA + comment + crlf, USAGE + DONE
    assert got.startswith(before + FINISH[:-3] + b',"outrider":')
    assert got.endswith(after)
    assert events_of(got)[2]["outrider"]["effective"]["drafter"]


async def test_a_whole_answer_is_relayed_byte_for_byte():
    """The lane's bytes stand as they were, with the report appended."""
    raw = b'{"id" : "x",\n "choices":[{"message":{"content":"\\u00e9"},"finish_reason":"stop"}], "f":1.0, "g":1e2 }'
    async with world(lambda _request: Reply(200, JSON, (raw,))) as w, w.chat() as response:
        got = await response.read()
    assert got.startswith(raw[:-1] + b',"outrider":')
    assert "metrics" not in orjson.loads(got)
    assert orjson.loads(got)["outrider"]["observed"] is None


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_report_says_what_was_asked_what_ran_and_what_happened(is_stream):
    """In the body, or in the last finish chunk; with vLLM's metrics beside it."""
    reply = lambda request: chat_reply(stream=is_stream, stats=STATS)  # noqa: E731
    hints = {"drafter": "ngram", "k": 4, "verbose": True}
    async with world(reply) as w, w.chat(stream=is_stream, outrider=hints) as response:
        raw = await response.read()
    last = last_of(raw, is_stream)
    report = last["outrider"]
    assert report["requested"] == hints
    assert report["effective"] == {"drafter": "ngram", "k": 4}
    assert report["observed"] == {
        "num_verify_steps": 4, "num_proposed": 8, "num_accepted": 5, "accept_length": 2.25,
        "accepted_histogram": [1, 1, 2],
    }  # fmt: skip
    assert (report["lane"], report["rule"]) == ("scripted", "request")
    assert report["reasons"]
    assert report["inputs"]["features"]["task"] == report["task"]
    assert report["inputs"]["load"]["max_running"] == 16
    assert last["metrics"]["speculative_decoding"] == {
        "mean_acceptance_length": 2.25, "draft_acceptance_rate": 0.625, "acceptance_histogram": [1, 1, 2, 0, 0],
        "num_spec_steps": 4, "num_accepted_draft_tokens": 5, "num_draft_tokens": 8, "num_spec_tokens": 4,
    }  # fmt: skip
    assert b"sglext" not in raw


@pytest.mark.parametrize("is_stream", [False, True])
async def test_off_is_verifiable(is_stream):
    """No verify steps are reported, and no metrics."""
    async with world() as w, w.chat(stream=is_stream, outrider={"off": True}) as response:
        raw = await response.read()
    last = last_of(raw, is_stream)
    assert last["outrider"]["observed"] is None
    assert "inputs" not in last["outrider"]
    assert "metrics" not in last


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_lanes_statistics_are_shown_to_those_who_ask(is_stream):
    """`sglext` passes untouched with `return_spec_tokens_details`."""
    reply = lambda request: chat_reply(stream=is_stream, stats=STATS)  # noqa: E731
    async with world(reply) as w, w.chat(stream=is_stream, return_spec_tokens_details=True) as response:
        raw = await response.read()
    bodies = events_of(raw) if is_stream else [orjson.loads(raw)]
    details = [body["sglext"]["spec_tokens_details"] for body in bodies if "sglext" in body]
    assert [one["spec_verify_ct"] for one in details] == [4]


async def test_contradictory_statistics_are_none_and_said():
    """A histogram that does not add up is not passed on as an observation."""
    details = {"spec_verify_ct": 3, "spec_num_correct_drafts": 9, "spec_correct_drafts_histogram": [1, 1]}
    body = {"choices": [{"index": 0, "finish_reason": "stop"}], "sglext": {"spec_tokens_details": details}}
    async with world(lambda _request: json_reply(body)) as w:
        async with w.chat() as response:
            got = await response.json()
        assert got["outrider"]["observed"] is None
        assert "the lane's statistics contradict themselves" in got["outrider"]["reasons"]
        assert "metrics" not in got
        assert await w.metric("outrider_bad_lane_statistics_total") == 1


async def test_lane_headers_of_our_name_pass_unless_we_set_them():
    """A lane may add to what is said, not overwrite it."""
    headers = (("x-outrider-slots", "4"), ("x-outrider-k", "99"), ("x-other", "no"))
    async with world(lambda _request: json_reply({"choices": []}, headers=headers)) as w, w.chat() as response:
        assert response.headers["x-outrider-slots"] == "4"
        assert response.headers.getall("x-outrider-k") == [response.headers["x-outrider-k"]] != ["99"]
        assert "x-other" not in response.headers


async def test_text_completions_go_the_same_way():
    """Stream and whole, with the report."""
    async with world() as w:
        async with w.post({"prompt": "hello", "max_tokens": 5}, path=COMPLETIONS) as response:
            body = await response.json()
        assert body["choices"][0]["text"] and body["outrider"]["lane"] == "scripted"
        async with w.post({"prompt": "hello", "stream": True}, path=COMPLETIONS) as response:
            raw = await response.read()
        assert raw.endswith(DONE) and b'"outrider":' in raw
        assert w.upstream.path == COMPLETIONS != CHAT


async def test_events_are_written_as_they_come():
    """The first event is at the client while the lane still works on the second."""
    async with world(streams(DELTA, Fault.HANG)) as w, w.chat(stream=True) as response:
        assert await response.content.readuntil(b"\n\n") == DELTA
        assert w.scripted.num_open >= 1


async def test_connections_to_the_lane_are_used_again():
    """A stream that is read to its end leaves its connection to the next request."""
    async with world() as w:
        before = len(w.scripted._connections)
        for is_stream in (True, False, True, True, True):
            async with w.chat(stream=is_stream) as response:
                await response.read()
        assert len(w.scripted._connections) - before <= 1


SPECULATED = SpecStats(20, 40, (0, 10, 0, 10), num_proposed=60)
PIECES = ("a",) * 64


def with_choices(reply, number):
    """A stream with the last text of its choice said of `number` choices."""
    *steps, finish, stats, usage, done = [one for one in reply.steps if isinstance(one, bytes)]
    ends = [finish.replace(b'"index":0', b'"index":%d' % index) for index in range(number)]
    return Reply(200, reply.headers, (*steps, 0.02, *ends, stats, usage, done))


@pytest.mark.parametrize(("fields", "is_timed"), [({}, False), ({"n": 4}, False), ({"n": 1}, True)])
async def test_only_a_stream_of_one_choice_teaches_times(fields, is_timed):
    """A whole answer comes at once and choices run side by side: neither tells the time of a token."""
    is_stream = bool(fields)
    reply = chat_reply(PIECES, stream=is_stream, include_usage=True, stats=SPECULATED)
    if is_stream:
        reply = with_choices(reply, fields["n"])
    async with world(lambda _request: reply) as w:
        async with w.chat(
            stream=is_stream, temperature=0, outrider={"drafter": "ngram", "k": 3}, **fields
        ) as response:
            await response.read()
        await eventually(lambda: w.outcomes)
        outcome, learner = w.outcomes[-1][1], w.gateway.dispatcher.policies.learner
    assert (outcome.status, outcome.stats, outcome.num_completion_tokens) == (200, SPECULATED, 64)
    assert ("decode" in outcome.phases) is is_timed
    assert (learner.rounds.to_state() != type(learner.rounds)().to_state()) is is_timed
    assert learner.acceptance.to_state() != type(learner.acceptance)().to_state()


@pytest.mark.parametrize("field", ["version", "model_path"])
async def test_another_model_or_build_behind_a_lane_makes_learning_begin_anew(field):
    """Once the lane is ready again; the same, come back, is remembered."""
    reply = chat_reply(PIECES, stream=False, stats=SPECULATED)
    async with world(lambda _request: reply) as w:
        async with w.chat(temperature=0, outrider={"drafter": "ngram", "k": 3}) as response:
            await response.read()
        await eventually(lambda: w.outcomes)
        learner = w.gateway.dispatcher.policies.learner
        for changes, is_kept in (({}, True), ({field: "other"}, False)):
            w.scripted.info |= changes
            w.lane.fails("restarted")
            w.lane.starts(w.scripted.url)
            await asyncio.wait_for(w.lane.wait_until_ready(), 30)
            assert bool(learner.acceptance.to_state()["counts"]) is is_kept


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_teaches_look_ups_that_did_not_run(is_stream):
    """Its text is looked through once it is over, whole or streamed."""
    pieces = ("the keeper climbed the steps, ",) * 4
    async with world(lambda _request: chat_reply(pieces, stream=is_stream)) as w:
        async with w.chat(stream=is_stream, temperature=0, outrider={"off": True}) as response:
            await response.read()
        acceptance = w.gateway.dispatcher.policies.learner.acceptance
        await eventually(lambda: {key[0] for key, *_ in acceptance.to_state()["counts"]} == {"ngram", "suffix"})
