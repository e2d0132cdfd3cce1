"""What a lane's server has to do, whoever wrote it: run unchanged against the embedded engine and against SGLang."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import pairwise

import aiohttp
import orjson
import pytest

from contract.conftest import DEVICE, NAME, Server
from outrider.errors import RequestError
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.runtimes.client import LaneClient, lane_call
from outrider.runtimes.lane import Lane
from outrider.runtimes.load import LaneWatch
from outrider.runtimes.protocol import error_of_response, raise_failure, read_stats
from outrider.telemetry.metrics import Metrics

pytestmark = [pytest.mark.model, pytest.mark.timeout(480)]

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Quote this text back: The water will be turned off on Thursday until noon."}]


def plan_of(server: Server) -> Plan:
    return Plan(server.drafter, server.k) if server.k else PLAN_OFF


def chat(server: Server, **fields):
    """A greedy chat body as the gateway sends it."""
    custom = {"outrider": plan_of(server).to_wire()}
    return {
        "model": NAME,
        "messages": MESSAGES,
        "max_tokens": 10,
        "temperature": 0,
        "custom_params": custom,
        **fields,
    }


def generate(server: Server, **fields):
    params = {"max_new_tokens": 8, "temperature": 0, "custom_params": {"outrider": plan_of(server).to_wire()}}
    return {"text": "one two three one two three one", "sampling_params": params, **fields}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=240)) as session:
        yield session


async def post(http, server, path, body):
    async with http.post(server.url + path, json=body) as response:
        raw = await response.read()
        return response.status, orjson.loads(raw)


async def events(http, server, path, body):
    """The events of a stream, which must end with [DONE]."""
    async with http.post(server.url + path, json=body | {"stream": True}) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        parts = (await response.read()).decode().strip().split("\n\n")
    assert parts[-1] == "data: [DONE]"
    return [orjson.loads(part.removeprefix("data: ")) for part in parts[:-1]]


async def test_generate(server: Server, http) -> None:
    """Text, ids and counts agree; a stream is cumulative and ends as the whole answer is."""
    status, whole = await post(http, server, "/generate", generate(server))
    meta = whole["meta_info"]
    assert (status, meta["finish_reason"]) == (200, {"type": "length", "length": 8})
    assert (len(whole["output_ids"]), meta["completion_tokens"]) == (8, 8)
    assert meta["prompt_tokens"] > 0
    chunks = await events(http, server, "/generate", generate(server))
    assert chunks[-1]["output_ids"] == whole["output_ids"] and chunks[-1]["text"] == whole["text"]
    for earlier, later in pairwise(chunks):
        assert later["text"].startswith(earlier["text"])
        assert len(later["output_ids"]) > len(earlier["output_ids"])


async def test_chat(server: Server, http) -> None:
    """A stream opens with the role and gives the text of the whole answer, then the usage when asked for."""
    status, whole = await post(http, server, CHAT, chat(server))
    choice = whole["choices"][0]
    assert (status, choice["finish_reason"], choice["message"]["role"]) == (200, "length", "assistant"), whole
    usage = whole["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert usage["completion_tokens"] == 10
    chunks = await events(http, server, CHAT, chat(server, stream_options={"include_usage": True}))
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(deltas) == choice["message"]["content"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 10
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert reasons == ["length"]


async def test_completions(server: Server, http) -> None:
    """The text route gives text, streamed or not."""
    body = {"model": NAME, "prompt": "one two three one two", "max_tokens": 6, "temperature": 0}
    status, whole = await post(http, server, COMPLETION, body)
    assert (status, whole["choices"][0]["finish_reason"]) == (200, "length")
    chunks = await events(http, server, COMPLETION, body)
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == whole["choices"][0]["text"]


async def test_stop(server: Server, http) -> None:
    """A stop string ends the text before it, inside a run of accepted drafts too."""
    _, whole = await post(http, server, CHAT, chat(server, max_tokens=16))
    text = whole["choices"][0]["message"]["content"]
    stop = text.split()[3]
    _, cut = await post(http, server, CHAT, chat(server, max_tokens=16, stop=[stop]))
    choice = cut["choices"][0]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", stop)
    assert choice["message"]["content"] == text[: text.index(stop)]


async def test_logprobs(server: Server, http) -> None:
    """One entry a token, the chosen one on top at temperature 0, speculated or not."""
    status, whole = await post(http, server, CHAT, chat(server, logprobs=True, top_logprobs=2))
    entries = whole["choices"][0]["logprobs"]["content"]
    assert (status, len(entries)) == (200, 10)
    for entry in entries:
        assert entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] == pytest.approx(entry["logprob"], abs=1e-3)
    _, other = await post(http, server, "/generate", generate(server, return_logprob=True, top_logprobs_num=1))
    assert len(other["meta_info"]["output_token_logprobs"]) == 8


async def test_statistics(server: Server, http) -> None:
    """Identities hold (reading checks them); a server that does not speculate reports none."""
    body = chat(server, return_spec_tokens_details=True, max_tokens=16)
    _, whole = await post(http, server, CHAT, body)
    stats = read_stats((whole.get("sglext") or {}).get("spec_tokens_details"))
    if server.k == 0:
        assert stats is None
        return
    assert stats is not None and stats.num_accepted > 0
    assert len([count for count in stats.histogram[server.k + 1 :] if count]) == 0
    assert 1 + stats.num_verify_steps + stats.num_accepted >= whole["usage"]["completion_tokens"]
    chunks = await events(http, server, CHAT, body)
    found = [chunk["sglext"] for chunk in chunks if chunk.get("sglext")]
    assert read_stats(found[-1]["spec_tokens_details"]) is not None


async def test_off_is_off(server: Server, http) -> None:
    """A plan that is off accepts no draft, and gives the same greedy text."""
    _, speculated = await post(http, server, CHAT, chat(server))
    body = chat(server, custom_params={"outrider": PLAN_OFF.to_wire()}, return_spec_tokens_details=True)
    _, plain = await post(http, server, CHAT, body)
    stats = read_stats((plain.get("sglext") or {}).get("spec_tokens_details"))
    assert stats is None or stats.num_accepted == 0
    assert plain["choices"][0]["message"] == speculated["choices"][0]["message"]


async def test_abort_by_exact_id(server: Server, http) -> None:
    """The named request ends and says so; the one beside it runs to its end."""
    ids = [uuid.uuid4().hex for _ in range(2)]
    # So many that both are seen to run: a GPU writes hundreds between two looks, a CPU takes long for them.
    num_tokens = 300 if DEVICE == "cpu" else 900
    short = {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    params = short | {"max_new_tokens": num_tokens + (300 if DEVICE == "cpu" else 50)}
    bodies = [
        generate(server, rid=ids[0], sampling_params=params),
        generate(server, rid=ids[1], sampling_params=short),
    ]
    both = [asyncio.create_task(events(http, server, "/generate", body)) for body in bodies]
    await until(http, server, lambda count: count == 2)
    async with http.post(server.url + "/abort_request", json={"rid": ids[0]}) as response:
        assert response.status == 200
    aborted, other = await asyncio.gather(*both)
    assert aborted[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert other[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": num_tokens}


async def num_requests(http, server) -> int:
    async with http.get(server.url + "/v1/loads") as response:
        load = (await response.json())["loads"][0]
        return load["num_running_reqs"] + load["num_waiting_reqs"]


async def until(http, server, condition) -> None:
    async with asyncio.timeout(60):
        while not condition(await num_requests(http, server)):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("phase", ["non-streaming", "before the first event", "mid-stream"])
async def test_a_client_that_leaves_frees_its_slot(server: Server, http, phase: str) -> None:
    """As the gateway leaves: the connection is closed and the id is aborted."""
    body = chat(server, max_tokens=900, ignore_eos=True, stream=phase != "non-streaming")
    call = lane_call(CHAT, orjson.dumps(body), plan_of(server), model=None, is_stream=body["stream"])
    seen = asyncio.Event()

    async def run() -> None:
        async with client.open("lane", server.url, call) as answer:
            async for _ in answer.packets():
                seen.set()

    async with LaneClient(Metrics()) as client:
        await until(http, server, lambda count: count == 0)
        request = asyncio.create_task(run())
        if phase == "mid-stream":
            await asyncio.wait_for(seen.wait(), 60)
        else:
            await until(http, server, lambda count: count == 1)
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        await until(http, server, lambda count: count == 0)


BAD = [
    (CHAT, {"temperature": -1}),
    (CHAT, {"top_p": 7}),
    (CHAT, {"messages": []}),
    ("/generate", {"sampling_params": {"temperature": -1}}),
    ("/generate", {"sampling_params": {"num_draft_tokens": 3}}),
    ("/generate", {"text": 3}),
]


@pytest.mark.parametrize(("path", "fields"), BAD)
async def test_bad_parameters_are_refused(server: Server, http, path: str, fields) -> None:
    """By a 400 that we can read, whatever its shape, and that says something."""
    body = (chat(server) if path == CHAT else generate(server)) | fields
    async with http.post(server.url + path, json=body) as response:
        error = error_of_response(response.status, await response.read())
    assert isinstance(error, RequestError) and error.status == 400
    assert len(error.message) > 8 and not error.message.startswith("the lane answered")


async def test_a_prompt_that_is_too_long_is_refused(server: Server, http) -> None:
    """On both kinds of route; a stream of /generate may say so in an event."""
    text = "word " * (server.context_length + 50)
    async with http.post(
        server.url + CHAT, json=chat(server, messages=[{"role": "user", "content": text}])
    ) as response:
        error = error_of_response(response.status, await response.read())
        assert isinstance(error, RequestError) and error.status == 400
    async with http.post(server.url + "/generate", json=generate(server, text=text, stream=True)) as response:
        raw = await response.read()
    if response.status == 200:
        with pytest.raises(RequestError):
            raise_failure(orjson.loads(raw.split(b"\n\n")[0].removeprefix(b"data: ")))
    else:
        assert isinstance(error_of_response(response.status, raw), RequestError)


async def test_what_the_gateway_asks_of_it(server: Server) -> None:
    """Readiness, models, abilities and load are all there, and what is asked for is among its abilities."""
    lane = Lane("lane", server.url)
    async with LaneClient(Metrics()) as client:
        watch = asyncio.create_task(LaneWatch(lane, client).run())
        try:
            await asyncio.wait_for(lane.wait_until_ready(), 60)
        finally:
            watch.cancel()
            await asyncio.wait([watch])
    assert [card.id for card in lane.models] == [NAME]
    assert lane.load() is not None and lane.load().max_running == 8
    assert lane.abilities.can_be_off
    if server.k:
        ks = lane.abilities.drafters[server.drafter]
        assert ks.min <= server.k <= ks.max
    else:
        assert lane.abilities.drafters == {}


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/server_info", "/v1/loads", "/metrics"])
async def test_routes_that_are_asked_for(server: Server, http, path: str) -> None:
    """All answer 200."""
    async with http.get(server.url + path) as response:
        assert response.status == 200


async def test_an_unknown_route_is_not_found(server: Server, http) -> None:
    """Whatever the body looks like, it can be read."""
    async with http.post(server.url + "/v1/nothing", json={}) as response:
        assert error_of_response(response.status, await response.read()).status == 404
