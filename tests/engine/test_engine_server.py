"""The engine over real HTTP: SGLang's shapes, statistics and identities, errors by field, cancellation, load."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.engine.engine import EngineLimits
from outrider.engine.info import ServerOptions
from outrider.engine.server import serving
from outrider.sse import DONE, SSEDecoder

PROMPT = "ABCDABDCACBD"
NGRAM = {"outrider": {"drafter": "ngram", "k": 4}}


class Client:
    """Requests to one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=body) as response:
            raw = await response.read()
            return response.status, json.loads(raw) if raw else None

    async def get(self, path: str) -> Any:
        async with self.session.get(self.url + path) as response:
            assert response.status == 200
            return await response.json()

    async def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Chunks of a stream, whose last event is [DONE]."""
        async with self.session.post(self.url + path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "text/event-stream"
            events = [e.data for e in SSEDecoder().feed(await response.read())]
        assert events.pop() == DONE
        return [json.loads(data) for data in events if data is not None]

    async def num_running(self) -> int:
        load = (await self.get("/v1/loads"))["loads"][0]
        return load["num_running_reqs"] + load["num_waiting_reqs"]

    async def until_idle(self) -> float:
        """Seconds until the engine holds no request."""
        start = time.monotonic()
        async with asyncio.timeout(5):
            while await self.num_running():
                await asyncio.sleep(0.002)
        return time.monotonic() - start


async def serve(folder: Path, **limits: Any) -> AsyncIterator[Client]:
    options = ServerOptions(folder, "toy", limits=EngineLimits(**{"max_running": 8, **limits}))
    async with (
        serving(options) as url,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield Client(session, url)


@pytest.fixture
async def client(toy_folder: Path) -> AsyncIterator[Client]:
    async for one in serve(toy_folder):
        yield one


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 12, **fields}


async def test_chat_whole_and_streamed_agree(client: Client) -> None:
    """The stream has SGLang's order, its text is the whole answer's, and usage counts tokens, not chunks."""
    status, whole = await client.post("/v1/chat/completions", chat())
    events = await client.events("/v1/chat/completions", chat(stream_options={"include_usage": True}))
    assert status == 200
    text = whole["choices"][0]["message"]["content"]
    assert len(text) == 12
    counts = {"prompt_tokens": 12, "completion_tokens": 12, "total_tokens": 24}
    assert whole["usage"] == {**counts, "prompt_tokens_details": {"cached_tokens": 0}}
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"]) == text
    assert [e["choices"][0]["finish_reason"] for e in events[:-1]] == [None] * (len(events) - 2) + ["length"]
    assert (events[-1]["choices"], events[-1]["usage"]) == ([], whole["usage"])
    assert len({e["id"] for e in events}) == 1


async def test_statistics_come_when_asked_for_and_satisfy_their_identities(client: Client) -> None:
    """Histogram, verify steps, accepted drafts and completion tokens fit together, streamed or not."""
    body = chat(custom_params=NGRAM, return_spec_tokens_details=True, max_tokens=60)
    _, whole = await client.post("/v1/chat/completions", body)
    events = await client.events("/v1/chat/completions", body)
    details = whole["sglext"]["spec_tokens_details"]
    assert events[-1] | {"choices": []} == events[-1]
    assert events[-1]["sglext"]["spec_tokens_details"] == details
    histogram, steps = details["spec_correct_drafts_histogram"], details["spec_verify_ct"]
    assert sum(histogram) == steps
    assert sum(i * n for i, n in enumerate(histogram)) == details["spec_num_correct_drafts"]
    assert details["spec_num_correct_drafts"] <= details["spec_num_proposed_drafts"] <= 4 * steps
    assert 1 + steps + details["spec_num_correct_drafts"] >= 60
    assert details["spec_accept_length"] == pytest.approx(60 / steps)
    assert details["spec_num_correct_drafts"] > 0


@pytest.mark.parametrize("plan", [{}, {"outrider": {"drafter": "off", "k": 0}}], ids=["no plan", "off"])
async def test_off_shows_no_statistics_anywhere(client: Client, plan: dict[str, Any]) -> None:
    """Absence is how `off` is verified: not zero, not an empty object."""
    _, body = await client.post("/v1/chat/completions", chat(custom_params=plan, return_spec_tokens_details=True))
    assert "sglext" not in body
    _, body = await client.post("/generate", {"text": PROMPT, "sampling_params": {"custom_params": plan}})
    assert not [key for key in body["meta_info"] if key.startswith("spec_")]


async def test_generate_is_cumulative(client: Client) -> None:
    """Each event of /generate holds all text and ids so far; the last equals the whole answer."""
    params = {"max_new_tokens": 10, "temperature": 0, "custom_params": NGRAM}
    status, whole = await client.post("/generate", {"text": PROMPT, "sampling_params": params, "rid": "a1"})
    events = await client.events("/generate", {"text": PROMPT, "sampling_params": params})
    assert status == 200 and whole["meta_info"]["id"] == "a1"
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 10}
    assert (events[-1]["text"], events[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    for before, after in itertools.pairwise(events):
        assert after["text"].startswith(before["text"])
        assert before["meta_info"]["finish_reason"] is None
    ids = await client.post(
        "/generate", {"input_ids": [0, 1, 2, 3, 0, 1, 3, 2, 0, 2, 1, 3], "sampling_params": params}
    )
    assert ids[1]["output_ids"] == whole["output_ids"]


async def test_cached_tokens_are_reported_and_stay_within_a_salt(client: Client) -> None:
    """Both fields that isolate do; streamed or not, usage and meta_info say how much was found again."""
    body = {"prompt": PROMPT * 3, "temperature": 0, "max_tokens": 4}
    found = {}
    for name, fields in {
        "new": {}, "again": {}, "salt": {"cache_salt": "a"}, "key": {"extra_key": "a"}, "both": {"cache_salt": ""},
    }.items():  # fmt: skip
        _, whole = await client.post("/v1/completions", {**body, **fields})
        found[name] = whole["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert found == {"new": 0, "again": 32, "salt": 0, "key": 0, "both": 32}
    events = await client.events("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}
    params = {"max_new_tokens": 4, "temperature": 0}
    for salt, expected in (("", 32), ("a", 32), ("b", 0)):
        _, whole = await client.post("/generate", {"text": PROMPT * 3, "sampling_params": params, "cache_salt": salt})
        assert whole["meta_info"]["cached_tokens"] == expected


async def test_completions_take_text_and_tokens(client: Client) -> None:
    """Both forms of a prompt give the same answer; the default is 16 tokens."""
    fields = {"temperature": 0}
    _, by_text = await client.post("/v1/completions", {"prompt": "ABCA", **fields})
    _, by_ids = await client.post("/v1/completions", {"prompt": [0, 1, 2, 0], **fields})
    events = await client.events("/v1/completions", {"prompt": "ABCA", **fields})
    assert by_text["choices"] == by_ids["choices"]
    assert by_text["usage"]["completion_tokens"] == 16
    assert "".join(e["choices"][0]["text"] for e in events) == by_text["choices"][0]["text"]


async def test_a_seed_repeats_an_answer_with_any_plan(client: Client) -> None:
    """Same seed, same text, speculated or not; without a seed, texts differ."""
    body = chat(temperature=1.0, seed=11, max_tokens=40)
    texts = [
        (await client.post("/v1/chat/completions", body | extra))[1]["choices"][0]["message"]["content"]
        for extra in ({}, {"custom_params": NGRAM}, {"custom_params": {"outrider": {"drafter": "ngram", "k": 1}}})
    ]
    assert len(set(texts)) == 1
    del body["seed"]
    free = [
        (await client.post("/v1/chat/completions", body))[1]["choices"][0]["message"]["content"] for _ in range(3)
    ]
    assert len(set(free)) == 3


async def test_stop_strings_and_tokens(client: Client) -> None:
    """What matched is reported, and no text after it is shown."""
    _, plain = await client.post("/v1/chat/completions", chat(max_tokens=30))
    text = plain["choices"][0]["message"]["content"]
    stop = text[4:6]
    _, by_string = await client.post("/v1/chat/completions", chat(max_tokens=30, stop=stop))
    choice = by_string["choices"][0]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", stop)
    assert choice["message"]["content"] == text[: text.index(stop)]
    token = "ABCD".index(text[3])
    _, by_token = await client.post("/v1/chat/completions", chat(max_tokens=30, stop_token_ids=[token]))
    assert by_token["choices"][0]["matched_stop"] == token
    assert by_token["choices"][0]["message"]["content"] == text[: text.index(text[3])]


async def test_a_prediction_is_used_and_accounted_for(client: Client) -> None:
    """A right prediction saves steps, the text stays, and usage counts its tokens; both forms of content work."""
    _, plain = await client.post("/v1/chat/completions", chat(max_tokens=30))
    text = plain["choices"][0]["message"]["content"]
    assert "completion_tokens_details" not in plain["usage"]
    plan = {"outrider": {"drafter": "prediction", "k": 8}}
    for content in (text, [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]):
        fields = {"custom_params": plan, "prediction": {"type": "content", "content": content}}
        body = chat(max_tokens=30, return_spec_tokens_details=True, **fields)
        _, answer = await client.post("/v1/chat/completions", body)
        assert answer["choices"][0]["message"]["content"] == text
        details = answer["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 20 and details["rejected_prediction_tokens"] == 0
        assert answer["sglext"]["spec_tokens_details"]["spec_verify_ct"] < 6
        events = await client.events("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
        assert events[-1]["usage"]["completion_tokens_details"] == details
    wrong = {"custom_params": plan, "prediction": {"type": "content", "content": text[0] + "Z" * 29}}
    _, answer = await client.post("/v1/chat/completions", chat(max_tokens=30, **wrong))
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] > 0


@pytest.mark.parametrize("plan", [{}, NGRAM], ids=["off", "another drafter"])
async def test_an_unused_prediction_is_named_as_ignored(client: Client, plan: dict[str, Any]) -> None:
    """It cannot change the text, so it is no error, but it is not passed over in silence."""
    body = chat(custom_params=plan, prediction={"type": "content", "content": "AB"})
    async with client.session.post(client.url + "/v1/chat/completions", json=body) as response:
        assert response.status == 200
        assert response.headers["x-outrider-ignored"] == "prediction"


async def test_drafters_that_run_here_are_listed(client: Client) -> None:
    """Without a draft model that drafter is not offered."""
    info = await client.get("/server_info")
    assert info["outrider"]["drafters"] == ["ngram", "suffix", "prediction", "layer_skip"]


async def test_a_drafter_that_may_not_pay_is_warned_about(client: Client) -> None:
    """In /server_info, with its memory, and with every answer that it drafted for; others carry no warning."""
    info = (await client.get("/server_info"))["outrider"]
    assert info["memory"]["weight_bytes"] > 0 and info["memory"]["max_cache_bytes"] > 0
    skipping = info["drafter_info"]["layer_skip"]
    assert skipping["worth"] is None and skipping["cache_bytes"] == 0 < skipping["max_cache_bytes"]
    for drafter, warning in (("layer_skip", skipping["warning"]), ("ngram", None)):
        body = chat(custom_params={"outrider": {"drafter": drafter, "k": 2}}, max_tokens=4)
        for is_stream in (False, True):
            url, json_body = client.url + "/v1/chat/completions", {**body, "stream": is_stream}
            async with client.session.post(url, json=json_body) as response:
                assert response.status == 200 and response.headers.get("x-outrider-warning") == warning


async def test_answers_of_one_salt_speed_up_each_other(client: Client) -> None:
    """The second of two equal answers takes fewer steps when both name the same salt, on each route."""
    steps = []
    plan = {"outrider": {"drafter": "suffix", "k": 8}}
    for salt in ("a", "a", "b"):
        body = {"text": PROMPT, "cache_salt": salt, "sampling_params": {"sampling_seed": 3, "custom_params": plan}}
        steps.append((await client.post("/generate", body))[1]["meta_info"]["spec_verify_ct"])
    assert steps[1] < steps[0] == steps[2]
    body = {"prompt": PROMPT, "seed": 3, "max_tokens": 128, "return_spec_tokens_details": True, "custom_params": plan}
    _, same = await client.post("/v1/completions", {**body, "cache_salt": "a"})
    _, none = await client.post("/v1/completions", body)
    counts = [answer["sglext"]["spec_tokens_details"]["spec_verify_ct"] for answer in (same, none)]
    assert counts[0] < steps[0] == counts[1]


BAD_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"content": "A"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages.0.tool_calls"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 5000}, "messages"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"seed": "x"}, "seed"),
    ({"stream": 1}, "stream"),
    ({"rid": "no spaces"}, "rid"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"logprobs": 3}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"frequency_penalty": 2.5}, "frequency_penalty"),
    ({"presence_penalty": -2.5}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"prediction": {"type": "text", "content": "x"}}, "prediction.type"),
    ({"prediction": "x"}, "prediction"),
    ({"custom_params": {"outrider": {"drafter": "prediction", "k": 2}}}, "prediction"),
    ({"custom_params": {"outrider": {"drafter": "draft_model", "k": 2}}}, "custom_params.outrider"),
    ({"logit_bias": {"3": 101}}, "logit_bias"),
    ({"logit_bias": {"A": 1}}, "logit_bias"),
    ({"logit_bias": {"64": 1}}, "logit_bias"),
    ({"custom_params": {"outrider": 3}}, "custom_params.outrider"),
    ({"custom_params": {"outrider": {"drafter": "eagle9", "k": 2}}}, "custom_params.outrider"),
    ({"custom_params": {"outrider": {"drafter": "ngram", "k": 99}}}, "custom_params.outrider"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHATS, ids=[f"{p}-{i}" for i, (_, p) in enumerate(BAD_CHATS)])
async def test_bad_chats_name_the_field(client: Client, fields: dict[str, Any], param: str) -> None:
    """A 400 in SGLang's flat shape whose `param` is the field, whether it streams or not."""
    for stream in (False, True):
        status, error = await client.post("/v1/chat/completions", chat(**({"stream": stream} | fields)))
        assert (status, error["object"]) == (400, "error"), error
        assert (error["param"] or "").startswith(param), error
        assert error["message"] and set(error) == {"object", "message", "type", "param", "code"}


async def test_bad_generates_and_bodies(client: Client) -> None:
    """/generate has an error object of its own; unknown sampling keys are refused, as SGLang refuses them."""
    for body, param in (
        ({"text": "A", "sampling_params": {"temprature": 1}}, "sampling_params"),
        ({"text": "A", "sampling_params": {"repetition_penalty": 2.5}}, "sampling_params.repetition_penalty"),
        ({"text": "A", "sampling_params": {"logit_bias": {"99": 1}}}, "sampling_params.logit_bias"),
        ({"text": "A", "sampling_params": {"regex": "A"}}, "sampling_params.regex"),
        ({"text": "A", "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len"),
        ({"text": "A", "return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"text": "A", "input_ids": [1]}, "text"),
        ({}, "text"),
        ({"input_ids": [64]}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"text": "A" * 3000}, "text"),
    ):
        status, answer = await client.post("/generate", body)
        assert (status, answer["error"]["param"]) == (400, param), answer
    async with client.session.post(
        client.url + "/v1/completions", data=b"{", headers={"Content-Type": "application/json"}
    ) as r:
        assert (r.status, (await r.json())["param"]) == (400, "body")
    async with client.session.post(client.url + "/v1/completions", data=b"{}") as r:
        assert r.status == 400


async def test_fields_without_meaning_here(client: Client) -> None:
    """Neutral values of unsupported fields and labels are accepted; names that nobody knows are reported back."""
    body = chat(n=1, logprobs=False, tools=[], user="me", frequency_penalty=0, response_format={"type": "text"})
    async with client.session.post(client.url + "/v1/chat/completions", json=body) as response:
        assert response.status == 200 and "x-outrider-ignored" not in response.headers
    async with client.session.post(client.url + "/v1/chat/completions", json=chat(foo=1, bar={})) as response:
        assert response.headers["x-outrider-ignored"] == "foo,bar"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = """
messages model temperature top_p top_k min_p max_tokens stop seed stream n rid stream_options custom_params
stop_token_ids ignore_eos logprobs tools prompt user x
"""
field_names = st.sampled_from(FIELDS.split())


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.dictionaries(field_names, json_values, max_size=4),
    route=st.sampled_from(["chat/completions", "completions"]),
)
async def test_no_body_is_a_server_error(client: Client, fields: dict[str, Any], route: str) -> None:
    """Whatever valid JSON comes, the answer is a 200 or a 4xx."""
    body = {"max_tokens": 2, "prompt": "AB"} | (chat(max_tokens=2) if route.startswith("chat") else {}) | fields
    async with client.session.post(f"{client.url}/v1/{route}", json=body) as response:
        await response.read()
        assert response.status == 200 or 400 <= response.status < 500, await response.text()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_frees_the_slot(client: Client, is_stream: bool) -> None:
    """Mid-stream or waiting for a whole answer: the engine drops the request at once."""
    request = asyncio.create_task(client.post("/v1/chat/completions", chat(max_tokens=1900, stream=is_stream)))
    async with asyncio.timeout(5):
        while not await client.num_running():
            await asyncio.sleep(0.002)
    request.cancel()
    await asyncio.wait([request])
    assert await client.until_idle() < 0.25


async def test_a_client_that_leaves_during_prefill_frees_the_slot(toy_folder: Path) -> None:
    """A long prompt is given up between two of its chunks."""
    async for client in serve(toy_folder, max_prefill_rows=1):
        body = {"prompt": "ABCD" * 480, "max_tokens": 4, "stream": True}
        request = asyncio.create_task(client.post("/v1/completions", body))
        async with asyncio.timeout(5):
            while not await client.num_running():
                await asyncio.sleep(0.002)
        request.cancel()
        await asyncio.wait([request])
        assert await client.until_idle() < 0.25


async def test_abort_ends_exactly_the_named_request(client: Client) -> None:
    """A stream ends with the reason `abort`; ids that begin with the aborted one live on; unknown ids do nothing."""
    first = asyncio.create_task(client.events("/v1/chat/completions", chat(max_tokens=1900, rid="job-1")))
    other = asyncio.create_task(client.events("/v1/chat/completions", chat(max_tokens=300, rid="job-10")))
    async with asyncio.timeout(5):
        while await client.num_running() < 2:
            await asyncio.sleep(0.002)
    assert (await client.post("/abort_request", {"rid": "job"}))[0] == 200
    assert (await client.post("/abort_request", {"rid": "job-1"}))[0] == 200
    assert (await first)[-1]["choices"][0]["finish_reason"] == "abort"
    assert (await other)[-1]["choices"][0]["finish_reason"] == "length"


async def test_abort_of_a_whole_answer_is_an_error(client: Client) -> None:
    """Without a stream, an aborted request must not look like a short answer."""
    waiting = asyncio.create_task(client.post("/v1/chat/completions", chat(max_tokens=1900, rid="x")))
    async with asyncio.timeout(5):
        while not await client.num_running():
            await asyncio.sleep(0.002)
    await client.post("/abort_request", {"abort_all": True})
    status, error = await waiting
    assert (status, error["code"]) == (499, "aborted")


async def test_sixty_four_requests_at_once_all_complete(client: Client) -> None:
    """Eight slots serve sixty-four callers, with mixed plans, streamed and not."""
    plans = [{}, NGRAM, {"outrider": {"drafter": "ngram", "k": 1}}, {"outrider": {"drafter": "off", "k": 0}}]
    bodies = [chat(max_tokens=5 + i, custom_params=plans[i % 4], temperature=i % 3 / 2) for i in range(64)]
    answers = await asyncio.gather(*(client.post("/v1/chat/completions", body) for body in bodies))
    assert [status for status, _ in answers] == [200] * 64
    assert [answer["usage"]["completion_tokens"] for _, answer in answers] == [5 + i for i in range(64)]
    await client.until_idle()


async def test_what_the_server_says_of_itself(client: Client) -> None:
    """Readiness, model, limits, load and metrics have SGLang's names."""
    for path in ("/ready", "/health"):
        async with client.session.get(client.url + path) as response:
            assert response.status == 200
    assert (await client.get("/v1/models"))["data"][0]["id"] == "toy"
    info = await client.get("/server_info")
    assert (info["served_model_name"], info["context_length"], info["speculative_algorithm"]) == ("toy", 2048, None)
    await client.post("/v1/chat/completions", chat(custom_params=NGRAM))
    async with client.session.get(client.url + "/metrics") as response:
        text = await response.text()
    assert 'sglang:num_requests_total{finish="length"} 1.0' in text
    assert "sglang:generation_tokens_total 12.0" in text
    assert "sglang:num_running_reqs 0.0" in text


@pytest.mark.parametrize("route", ["chat", "completion", "generate"])
async def test_several_choices(client: Client, route: str) -> None:
    """Each has its index and its own text, the first that of a request for one; streamed and whole agree."""
    fields = {"temperature": 1.0, "custom_params": NGRAM}
    if route == "generate":
        path, body = "/generate", {"text": PROMPT}
        body["sampling_params"] = {**fields, "sampling_seed": 5, "max_new_tokens": 20}
        body_of_three = {**body, "sampling_params": {**body["sampling_params"], "n": 3}}
        _, one = await client.post(path, body)
        _, three = await client.post(path, body_of_three)
        texts, single = [choice["text"] for choice in three], one["text"]
        assert [choice["meta_info"]["cached_tokens"] for choice in three][1:] == [0, 0], "shorter than a block"
        last = {event["index"]: event for event in await client.events(path, body_of_three)}
        streamed = [last[i]["text"] for i in range(3)]
    else:
        path = "/v1/chat/completions" if route == "chat" else "/v1/completions"
        what = {"messages": [{"role": "user", "content": PROMPT}]} if route == "chat" else {"prompt": PROMPT}
        body = {**what, **fields, "seed": 5, "max_tokens": 20, "return_spec_tokens_details": True}
        _, one = await client.post(path, body)
        _, three = await client.post(path, {**body, "n": 3})
        read = (lambda c: c["message"]["content"]) if route == "chat" else (lambda c: c["text"])
        assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
        texts, single = [read(choice) for choice in three["choices"]], read(one["choices"][0])
        assert three["usage"]["completion_tokens"] == 60 and three["usage"]["prompt_tokens"] == len(PROMPT)
        assert len(three["sglext"]["spec_tokens_details"]) == 3
        events = await client.events(path, {**body, "n": 3, "stream_options": {"include_usage": True}})
        assert events[-1]["usage"] == three["usage"]
        assert events[-2]["sglext"]["spec_tokens_details"][0] == one["sglext"]["spec_tokens_details"]
        streamed = ["", "", ""]
        for choice in (choice for event in events for choice in event["choices"]):
            part = choice["delta"].get("content", "") if route == "chat" else choice["text"]
            streamed[choice["index"]] += part
        ended = [c["index"] for event in events for c in event["choices"] if c["finish_reason"]]
        assert sorted(ended) == [0, 1, 2]
    assert texts[0] == single and len(set(texts)) == 3 and streamed == texts
    plain = json.loads(json.dumps(body_of_three if route == "generate" else {**body, "n": 3}))
    (plain["sampling_params"] if route == "generate" else plain).pop("custom_params")
    _, off = await client.post(path, plain)
    choices = off if route == "generate" else off["choices"]
    assert [c["text"] if route == "generate" else read(c) for c in choices] == texts, "not speculated"


async def test_choices_share_the_prompt(client: Client) -> None:
    """All but the first find the whole blocks of the prompt in the cache."""
    params = {"n": 3, "max_new_tokens": 4}
    _, three = await client.post("/generate", {"text": PROMPT * 4, "sampling_params": params})
    assert [choice["meta_info"]["cached_tokens"] for choice in three] == [0, 32, 32]
    assert len({choice["meta_info"]["id"] for choice in three}) == 3


async def test_abort_and_departure_end_every_choice(client: Client) -> None:
    """By the request's id, and when the client goes."""
    body = {"text": PROMPT, "rid": "many", "sampling_params": {"n": 4, "max_new_tokens": 1500}}
    whole = asyncio.create_task(client.post("/generate", body))
    while await client.num_running() < 4:
        await asyncio.sleep(0.002)
    await client.post("/abort_request", {"rid": "many"})
    assert (await whole)[0] == 499
    await client.until_idle()
    async with client.session.post(client.url + "/generate", json={**body, "stream": True}) as response:
        await response.content.readany()
        while await client.num_running() < 4:
            await asyncio.sleep(0.002)
    await client.until_idle()


async def test_a_deadline_ends_a_request(client: Client) -> None:
    """A whole answer becomes 408, a stream says so in its last chunk; time enough changes nothing."""
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 1500}

    async def post(deadline: str, **more: Any) -> tuple[int, bytes]:
        headers = {"x-outrider-deadline-ms": deadline}
        url = f"{client.url}/v1/completions"
        async with client.session.post(url, json={**body, **more}, headers=headers) as response:
            return response.status, await response.read()

    status, raw = await post("60")
    assert (status, json.loads(raw)["code"]) == (408, "aborted")
    status, raw = await post("400", stream=True)
    assert status == 200 and b'"code":408' in raw and b'"finish_reason":"abort"' in raw
    assert (await post("60000", max_tokens=4))[0] == 200
    for bad in ("0", "-5", "1.5", "soon", ""):
        status, raw = await post(bad)
        assert (status, json.loads(raw)["param"]) == (400, "x-outrider-deadline-ms")
    await client.until_idle()
