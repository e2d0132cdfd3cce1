from __future__ import annotations

import asyncio
import contextlib
import json

import aiohttp
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.test_gateway_access import auth, bearer
from gateway.world import CHAT, COMPLETIONS, MESSAGES, eventually, world
from outrider.app import serving
from outrider.config import Config, ServerSection
from outrider.core import LaneState
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted_replies import SENTENCE, Reply, chat_reply, default_reply


async def test_models_are_the_lanes_own_entries():
    """Fields that we do not know survive; one model can be asked for by name."""
    async with world(model="org/some-model") as w:
        async with w.http.get(w.gateway.url + "/v1/models") as response:
            listed = await response.json()
        assert [card["id"] for card in listed["data"]] == ["org/some-model"]
        assert listed["data"][0]["max_model_len"] == 8192
        async with w.http.get(w.gateway.url + "/v1/models/org/some-model") as response:
            assert await response.json() == listed["data"][0]


async def test_an_unknown_model_is_404():
    """In the path and in a body; no lane is bothered."""
    async with world() as w:
        async with w.http.get(w.gateway.url + "/v1/models/other") as response:
            assert (await response.json())["error"]["code"] == "model_not_found"
        async with w.chat(model="other") as response:
            body = await response.json()
            assert response.status == 404
            assert (body["error"]["code"], body["error"]["param"]) == ("model_not_found", "model")
        assert all(request.path != CHAT for request in w.scripted.requests)


@pytest.mark.parametrize("fields", [{}, {"model": None}])
async def test_a_missing_model_means_the_only_one(fields):
    """And the lane is told its name."""
    async with world() as w:
        async with w.chat(**fields) as response:
            assert response.status == 200
        assert w.upstream.json()["model"] == "scripted"


async def test_ready_and_health_without_a_ready_lane():
    """The process is healthy and not ready; requests are refused with a time to try again."""
    lane = Lane("absent", "http://127.0.0.1:9")
    config = Config(server=ServerSection(port=0))
    async with serving(config, lanes=[lane]) as gateway, aiohttp.ClientSession() as http:
        async with http.get(gateway.url + "/health") as response:
            assert response.status == 200
        async with http.get(gateway.url + "/ready") as response:
            body = await response.json()
            assert response.status == 503
            assert body["lanes"] == [{"name": "absent", "state": "starting"}]
        async with http.get(gateway.url + "/v1/models") as response:
            assert response.status == 503
        async with http.post(gateway.url + CHAT, json={"messages": MESSAGES}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (503, "lane_unavailable")
            assert int(response.headers["Retry-After"]) >= 1


async def test_ready_says_no_more_than_states():
    """It is open to everybody, and reasons hold lines of logs: those are for administrators."""
    async with world() as w:
        for state, status in (("ready", 200), ("failed", 503)):
            async with w.http.get(w.gateway.url + "/ready") as response:
                body = await response.json()
            assert (response.status, body.pop("policies").keys()) == (status, {"hash"})
            assert body == {
                "status": "ready" if status == 200 else "not ready",
                "lanes": [{"name": "scripted", "state": state}],
                "runs": "not kept",
            }
            w.lane.fails("its process ended: TOKEN=hunter2", is_gone=True)


async def test_a_lane_that_pauses_takes_nothing_new_and_ends_what_it_has():
    """By its own word, as before weights are loaded anew; then the gateway is not ready, and later is again."""
    goes_on = asyncio.Event()
    steps = chat_reply(stream=True).steps
    events = (("Content-Type", "text/event-stream"),)
    async with world(lambda _request: Reply(200, events, (*steps[:2], goes_on, *steps[2:]))) as w:
        async with w.chat(stream=True) as running:
            await running.content.readuntil(b"\n\n")
            w.scripted.is_ready = False
            await eventually(lambda: w.lane.state is LaneState.PAUSED)
            async with w.http.get(w.gateway.url + "/ready") as response:
                assert response.status == 503 and (await response.json())["lanes"][0]["state"] == "paused"
            assert await w.metric('outrider_lane_state{lane="scripted",state="paused"}') == 1
            async with w.chat() as response:
                assert response.status == 503 and "is paused" in (await response.json())["error"]["message"]
            goes_on.set()
            assert b"[DONE]" in await running.read()
        w.scripted.is_ready = True
        await eventually(lambda: w.lane.is_ready)
        async with w.chat(stream=True) as response:
            assert response.status == 200


async def test_every_answer_has_the_plan_in_its_headers():
    """Whole answers, streams, and failures after the decision."""
    async with world() as w:
        for fields in ({}, {"stream": True}, {"model": "scripted", "custom_params": {"x": 1}}):
            async with w.chat(outrider={"drafter": "ngram", "k": 3}, **fields) as response:
                await response.read()
            names = ("drafter", "k", "lane", "workload", "rule")
            headers = [response.headers[f"x-outrider-{name}"] for name in names]
            assert headers == ["ngram", "3", "scripted", "code", "request"]
            assert response.headers["x-request-id"]


async def test_metrics_tell_what_happened():
    """Decisions, tokens, times, lane state and gauges are on the page."""
    async with world() as w:
        async with w.chat(outrider={"drafter": "ngram", "k": 3}) as response:
            assert response.status == 200
        labels = 'drafter="ngram",k="3",rule="request",workload="code"'
        assert await w.metric(f"outrider_decisions_total{{{labels}}}") == 1
        assert await w.metric("outrider_accepted_draft_tokens_total") == 2
        assert await w.metric("outrider_proposed_draft_tokens_total") == 9
        assert await w.metric("outrider_first_event_seconds_count") == 1
        assert await w.metric("outrider_total_seconds_count") == 1
        assert await w.metric('outrider_lane_state{lane="scripted",state="ready"}') == 1
        assert await w.metric("outrider_in_flight") == 0
        assert await w.metric("outrider_queued") == 0


async def test_every_figure_of_a_stream_moves():
    """Times, tokens a step, pauses, acceptance and waste by workload and tenant, and the loop's own lateness."""

    def paused(request):
        good = default_reply(request)
        return Reply(good.status, good.headers, (*good.steps[:3], 0.6, *good.steps[3:]))

    async with world(paused, auth=auth(tenant="acme")) as w:
        options = {"stream_options": {"include_usage": True}, "outrider": {"drafter": "ngram", "k": 3}}
        async with w.chat(stream=True, headers=bearer("secret"), **options) as response:
            assert b"[DONE]" in await response.read()
        for name in (
            "queue_seconds",
            "first_event_seconds",
            "inter_token_seconds",
            "total_seconds",
            "tokens_per_step",
        ):
            assert await w.metric(f"outrider_{name}_count") == 1, name
        assert await w.metric("outrider_inter_token_seconds_sum") > 0.6 / len(SENTENCE)
        assert await w.metric("outrider_slow_gaps_total") == 1
        assert await w.metric("outrider_verify_steps_total") == 3
        whose = '{tenant="acme",workload="code"}'
        assert await w.metric(f"outrider_accept_length_count{whose}") == 1
        assert await w.metric(f"outrider_wasted_draft_tokens_total{whose}") == 7
        assert await w.metric(f"outrider_completion_tokens_total{whose}") == len(SENTENCE)
        assert await w.metric("outrider_event_loop_lag_seconds_count") > 0


async def test_64_concurrent_requests_complete():
    """Streams and whole answers, mixed."""
    async with world() as w:

        async def one(number):
            async with w.chat(stream=bool(number % 2)) as response:
                return response.status, b"jumps" in await response.read()

        assert set(await asyncio.gather(*map(one, range(64)))) == {(200, True)}
        await eventually(lambda: w.gateway.admission.num_in_flight == 0 and w.lane.num_in_flight == 0)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "messages",
        "prompt",
        "model",
        "temperature",
        "top_p",
        "min_p",
        "top_k",
        "max_tokens",
        "stop",
        "stream",
        "n",
        "seed",
        "stream_options",
        "custom_params",
        "outrider",
        "rid",
        "return_spec_tokens_details",
        "tools",
    ]
)
GOOD = {"messages": MESSAGES, "prompt": "hello"}
BODIES = st.dictionaries(FIELDS | st.text(max_size=5), JSON, max_size=4).map(
    lambda odd: json.dumps(GOOD | odd).encode()
)


@pytest.fixture(scope="module")
def shared():
    """One gateway for all examples, on a loop of its own."""
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        w = runner.run(stack.enter_async_context(world()))
        yield runner, w
        runner.run(stack.aclose())


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from([CHAT, COMPLETIONS]), raw=BODIES | st.binary(max_size=40))
def test_no_body_makes_a_5xx(shared, path, raw):
    """Whatever is sent, the answer is a success or a 4xx in the error shape."""
    runner, w = shared

    async def send():
        async with w.post(raw, path=path) as response:
            return response.status, response.headers, await response.read()

    status, headers, body = runner.run(send())
    assert status < 500
    assert headers["x-request-id"]
    if status != 200:
        assert set(orjson.loads(body)["error"]) == {"message", "type", "param", "code"}
