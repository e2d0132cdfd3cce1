"""The routes that are not OpenAI's completions: each goes to the lane's own, with what that route can carry."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest

from gateway.world import CHAT, eventually, world
from outrider.app import serving
from outrider.config import Config, ServerSection
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Fault, Reply, chat_reply, error_reply, event, json_reply
from outrider.sse import SSEDecoder

GENERATE = "/generate"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EVENTS = (("Content-Type", "text/event-stream"),)
SAID = [{"role": "user", "content": "hello"}]
#: A SGLang lane without our plugin, that only decodes or drafts n-grams at its one k.
PLAIN = {"outrider": None, "device": "cuda"}
NGRAM = PLAIN | {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8}
BODIES = {
    GENERATE: {"text": "hello"},
    RESPONSES: {"input": "hello", "model": "scripted"},
    MESSAGES: {"messages": SAID, "max_tokens": 5, "model": "scripted"},
}
COUNTS = {
    "spec_verify_ct": 3, "spec_num_correct_drafts": 2, "spec_num_proposed_drafts": 9,
    "spec_correct_drafts_histogram": [1, 2],
}  # fmt: skip


def generated(text, reason=None, **meta):
    finish = None if reason is None else {"type": reason}
    fields = {"id": "r", "finish_reason": finish, "completion_tokens": len(text)}
    return {"text": text, "output_ids": [1], "meta_info": fields | meta}


def named(kind, **fields):
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind} | fields) + b"\n\n"


RESPONSE = {"object": "response", "status": "completed", "error": None, "usage": {"output_tokens": 4}}
RESPONSE_EVENTS = (
    named("response.created", response={"error": None, "usage": None}),
    named("response.output_text.delta", delta='say "error": and "usage": {'),
    named("response.completed", response=RESPONSE),
)
MESSAGE = {"type": "message", "content": [{"type": "text", "text": "hi"}], "usage": {"output_tokens": 4}}
MESSAGE_EVENTS = (
    named("message_start", message={"usage": {"output_tokens": 0}}),
    named("content_block_delta", delta={"type": "text_delta", "text": '"type": "message_stop"'}),
    named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 4}),
    named("message_stop"),
)


@asynccontextmanager
async def sglang(path, reply, info=NGRAM):
    """A world whose lane is a SGLang server by its own word and answers `path` by `reply`."""
    async with world() as w:
        w.scripted.info, w.scripted.overrides[path] = dict(info), reply
        w.lane.fails("asked again")
        await w.lane.wait_until_ready()
        yield w


@asynccontextmanager
async def two_lanes(path, reply):
    """The URL of a gateway over a lane that only decodes and one that drafts, and a session."""
    config = Config(server=ServerSection(port=0, shutdown_grace_s=0))
    async with ScriptedLane() as plain, ScriptedLane() as ngram, aiohttp.ClientSession() as http:
        plain.info, ngram.info = dict(PLAIN), dict(NGRAM)
        plain.overrides[path] = ngram.overrides[path] = reply
        lanes = [Lane("plain", plain.url), Lane("ngram", ngram.url)]
        async with serving(config, lanes=lanes) as gateway:
            for lane in lanes:
                await lane.wait_until_ready()
            yield gateway.url, http


def parsed(raw):
    return [json.loads(one.data) for one in SSEDecoder().feed(raw) if one.data not in (None, b"[DONE]")]


async def test_generate_gets_the_plan_inside_its_parameters_byte_for_byte():
    """Our hints and the name of the model go, the plan and a fresh id come, the rest stays as it was."""
    raw = b'{"text":"\\u00e9", "x":1.50, "model":"scripted", "rid":"mine", "outrider":{"drafter":"ngram","k":3}, '
    raw += b'"sampling_params": {"temperature": 0.0, "custom_params": {"y": 2.50}}}'
    async with world(lambda _request: json_reply(generated("ab", "stop", **COUNTS))) as w:
        async with w.post(raw, GENERATE) as response:
            body = await response.json()
        sent = w.scripted.requests[-1]
    assert sent.body.startswith(b'{"text":"\\u00e9", "x":1.50')
    fields = sent.json()
    assert fields.keys() == {"text", "x", "sampling_params", "rid"} and len(fields["rid"]) == 32
    assert fields["sampling_params"] == {
        "temperature": 0.0, "custom_params": {"y": 2.5, "outrider": {"drafter": "ngram", "k": 3}},
    }  # fmt: skip
    assert b'"temperature": 0.0' in sent.body and b'"y": 2.50' in sent.body
    assert body["meta_info"]["spec_verify_ct"] == 3
    assert body["outrider"]["effective"] == {"drafter": "ngram", "k": 3}
    assert body["outrider"]["observed"]["accepted_histogram"] == [1, 2]
    assert w.outcomes[-1][1].num_completion_tokens == 2


@pytest.mark.parametrize("params", [None, {}, {"custom_params": None}])
async def test_generate_without_parameters_gets_a_plan_too(params):
    """Whatever stands in their place."""
    async with world(lambda _request: json_reply(generated("ab", "stop"))) as w:
        async with w.post({"input_ids": [1, 2], "sampling_params": params, "outrider": {"off": True}}, GENERATE) as r:
            assert r.status == 200
        sent = w.scripted.requests[-1].json()
    assert sent["sampling_params"]["custom_params"] == {"outrider": {"drafter": "off", "k": 0}}


async def test_a_stream_of_generate_carries_the_report_at_its_end():
    """The lane's bytes, the last one of each choice apart: the counts of all of them are in the last of all."""
    steps = [event(generated("a")), event(generated("ab", "length", **COUNTS) | {"index": 0})]
    steps += [event(generated("abc", "stop", **COUNTS) | {"index": 1}), b"data: [DONE]\n\n"]
    async with world(lambda _request: Reply(200, EVENTS, steps)) as w:
        body = {"text": ["x", "y"], "stream": True, "outrider": {"drafter": "ngram", "k": 3}}
        async with w.post(body, GENERATE) as response:
            raw = await response.read()
        outcome = w.outcomes[-1][1]
    assert raw.startswith(steps[0] + steps[1]) and raw.endswith(steps[3])
    assert parsed(raw)[-1]["outrider"]["observed"]["accepted_histogram"] == [2, 4]
    assert (outcome.status, outcome.num_completion_tokens, outcome.stats.num_verify_steps) == (200, 5, 6)


async def test_a_batch_of_generate_carries_one_report():
    """A list stays a list: its last answer has the report, with the counts of all."""
    answers = [generated("ab", "stop", **COUNTS), generated("abc", "stop", **COUNTS)]
    body = {"text": ["x", "y"], "outrider": {"drafter": "ngram", "k": 3}}
    async with world(lambda _request: json_reply(answers)) as w, w.post(body, GENERATE) as response:
        first, last = await response.json()
        await eventually(lambda: w.outcomes)
        assert w.outcomes[-1][1].num_completion_tokens == 5
    assert first == answers[0]
    assert last.pop("outrider")["observed"]["num_verify_steps"] == 6


@pytest.mark.parametrize(
    "reply",
    [
        json_reply(generated("", "abort") | {"meta_info": {"finish_reason": {"type": "abort", "status_code": 503}}}),
        error_reply(400, "object"),
        error_reply(400, "text"),
        json_reply([]),
        json_reply([1]),
        Reply(200, (), (b"[1,",)),
    ],
)
async def test_what_generate_reports_as_failed_is_an_error(reply):
    """An abort of status 200, SGLang's two shapes of this route, and lists of nothing."""
    async with world(lambda _request: reply) as w, w.post({"text": "x"}, GENERATE) as response:
        assert response.status in (400, 502, 503)
        assert (await response.json())["error"]["message"]


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
async def test_a_route_that_carries_no_plan_runs_the_lane_s_own(path):
    """What is reported is what the lane was launched with, with the reason; no plan is sent."""
    answer = RESPONSE if path == RESPONSES else MESSAGE
    async with sglang(path, json_reply(answer)) as w:
        async with w.post(BODIES[path] | {"outrider": {"drafter": "ngram", "k": 2}}, path) as response:
            body = await response.json()
        sent = w.scripted.requests[-1].json()
        outcome = w.outcomes[-1][1]
    report = body.pop("outrider")
    assert body == answer
    assert report["effective"] == {"drafter": "ngram", "k": 7} and report["observed"] is None
    assert "the route carries no plan" in report["reasons"][-1]
    assert not {"custom_params", "rid", "outrider", "return_spec_tokens_details"} & sent.keys()
    assert sent.pop("request_id", "resp_").startswith("resp_")
    assert sent == BODIES[path]
    assert outcome.num_completion_tokens == 4


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
@pytest.mark.parametrize(("hints", "name"), [({"off": True}, "plain"), ({"drafter": "ngram", "k": 7}, "ngram")])
async def test_without_a_plan_the_lane_is_chosen_that_runs_it_by_itself(path, hints, name):
    """`off` goes to the one that only decodes, a k to the one that was launched with it."""
    body = BODIES[path] | {"outrider": hints}
    async with two_lanes(path, json_reply({})) as (url, http), http.post(url + path, json=body) as response:
        report = (await response.json())["outrider"]
    assert report["lane"] == name
    assert report["effective"] == {"drafter": "off", "k": 0} if "off" in hints else hints


@pytest.mark.parametrize("path", [CHAT, GENERATE, RESPONSES])
async def test_min_p_goes_to_the_lane_that_honours_it(path):
    """Without our plugin the one that drafts does not: SGLang's verification leaves it out."""
    replies = {CHAT: chat_reply(stream=False), GENERATE: json_reply(generated("ab", "stop"))}
    async with two_lanes(path, replies.get(path, json_reply(RESPONSE))) as (url, http):
        for fields, name in (({}, "ngram"), ({"min_p": 0.1}, "plain")):
            sampling = {"temperature": 0.8} | fields
            body = BODIES.get(path, {"messages": SAID}) | {"outrider": {"drafter": "ngram", "k": 7}}
            body |= {"sampling_params": sampling} if path == GENERATE else sampling
            async with http.post(url + path, json=body) as response:
                report = (await response.json())["outrider"]
            assert report["lane"] == name
        assert any("does not honour min_p" in reason for reason in report["reasons"])


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (GENERATE, {"sampling_params": {"temperature": "x"}}, "sampling_params.temperature"),
        (GENERATE, {"sampling_params": {"sampling_seed": 2**63}}, "sampling_params.sampling_seed"),
        (GENERATE, {"sampling_params": [{}]}, "sampling_params"),
        (GENERATE, {"sampling_params": {"custom_params": {"outrider": 9}}}, "sampling_params.custom_params"),
        (GENERATE, {"text": 3}, "text"),
        (GENERATE, {"background": True}, "background"),
        (GENERATE, {"outrider": {"k": 99}}, "outrider.k"),
        (RESPONSES, {"input": None}, "input"),
        (RESPONSES, {"seed": 3}, "seed"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"custom_params": {}}, "custom_params"),
        (MESSAGES, {"messages": []}, "messages"),
        (MESSAGES, {"max_tokens": None}, "max_tokens"),
        (MESSAGES, {"min_p": 0.1}, "min_p"),
        (MESSAGES, {"presence_penalty": 0.1}, "presence_penalty"),
        (CHAT, {"messages": SAID, "seed": 2**63}, "seed"),
        (CHAT, {"messages": SAID, "seed": -(2**63) - 1}, "seed"),
    ],
)
async def test_what_a_route_cannot_carry_is_refused_by_name(path, fields, param):
    """Before a lane is asked, so that it cannot be dropped there without a word."""
    raw = json.dumps(BODIES.get(path, {}) | fields).encode()
    async with sglang(path, json_reply({})) as w, w.post(raw, path) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param


@pytest.mark.parametrize("path", BODIES)
async def test_who_leaves_is_left(path):
    """The lane's connection closes, and its id is aborted where the route has one."""
    async with sglang(path, Reply(200, EVENTS, (RESPONSE_EVENTS[0], Fault.HANG))) as w:
        async with w.post(BODIES[path] | {"stream": True}, path) as response:
            await response.content.readany()
            response.close()
        await eventually(lambda: len(w.scripted.disconnects) == 1)
        sent = w.scripted.disconnects[0].json()
        ids = [sent[key] for key in ("rid", "request_id") if key in sent]
        await eventually(lambda: w.scripted.aborted == ids)
        assert bool(ids) is (path != MESSAGES)
