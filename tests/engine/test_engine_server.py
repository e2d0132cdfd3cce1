"""The engine over real HTTP: SGLang's shapes, statistics and identities, drafters, what it says of itself."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

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

    async def until_idle(self) -> None:
        """Until the engine holds no request."""
        async with asyncio.timeout(60):
            while await self.num_running():
                await asyncio.sleep(0.002)


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
