"""The scripted lane: SGLang's shapes, exact framing, and faults that a real client sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import (
    SENTENCE,
    Fault,
    Recorded,
    Reply,
    default_reply,
    error_reply,
    json_reply,
)
from outrider.sse import DONE, SSEDecoder

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def lane_and_client(**options: Any) -> AsyncIterator[tuple[ScriptedLane, aiohttp.ClientSession]]:
    async with ScriptedLane(**options) as lane, aiohttp.ClientSession(lane.url) as client:
        yield lane, client


async def until(condition: Any, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.002)


async def stream_chunks(client: aiohttp.ClientSession, path: str, **body: Any) -> list[Any]:
    async with client.post(path, json={"stream": True} | body) as response:
        decoder = SSEDecoder()
        events = decoder.feed(await response.read()) + decoder.close()
    assert events.pop().data == DONE
    return [Recorded("", "", "", {}, event.data or b"", 0.0).json() for event in events]


async def test_probes_follow_readiness() -> None:
    """/ready and /health are 200 or 503, as the script says at that moment."""
    async with lane_and_client() as (lane, client):
        for is_ready, status in ((True, 200), (False, 503), (True, 200)):
            lane.is_ready = is_ready
            for path in ("/ready", "/health"):
                assert (await client.get(path)).status == status


async def test_description_of_the_lane() -> None:
    """Models, server information, load and metrics have SGLang's fields."""
    async with lane_and_client(model="tiny", load={"num_running_reqs": 3}) as (lane, client):
        models = await (await client.get("/v1/models")).json()
        info = await (await client.get("/server_info")).json()
        loads = (await (await client.get("/v1/loads?include=core")).json())["loads"]
        assert [model["id"] for model in models["data"]] == ["tiny"]
        assert info["served_model_name"] == "tiny" and info["speculative_algorithm"] is None
        assert info["internal_states"] == [{}]
        assert (loads[0]["num_running_reqs"], loads[0]["max_running_requests"]) == (3, 16)
        assert (lane.requests[-1].path, lane.requests[-1].query) == ("/v1/loads", "include=core")
        lane.load = None
        assert (await (await client.get("/v1/loads")).json())["loads"] == []
        assert await (await client.get("/metrics")).text() == ""
        assert (await client.get("/nowhere")).status == 404


async def test_aborts_are_recorded() -> None:
    """/abort_request answers 200 with an empty body and keeps the id."""
    async with lane_and_client() as (lane, client):
        response = await client.post("/abort_request", json={"rid": "r7"})
        assert (response.status, await response.read()) == (200, b"")
        assert lane.aborted == ["r7"]


async def test_a_chat_stream_has_sglangs_event_order() -> None:
    """Role, deltas, finish with the matched stop, statistics, usage, end."""
    body = {
        "model": "m",
        "rid": "r1",
        "return_spec_tokens_details": True,
        "stream_options": {"include_usage": True},
        "custom_params": {"outrider": {"drafter": "ngram", "k": 4}},
    }
    async with lane_and_client() as (_, client):
        role, *deltas, finish, spec, usage = await stream_chunks(client, CHAT, **body)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": "", "reasoning_content": None}
    assert [chunk["choices"][0]["delta"]["content"] for chunk in deltas] == list(SENTENCE)
    assert (finish["choices"][0]["finish_reason"], finish["choices"][0]["matched_stop"]) == ("stop", 2)
    assert spec["choices"] == [] and spec["sglext"]["spec_tokens_details"] == {
        "spec_accept_rate": 2 / 12,
        "spec_accept_length": 2.0,
        "spec_num_correct_drafts": 2,
        "spec_num_proposed_drafts": 12,
        "spec_verify_ct": 3,
        "spec_correct_drafts_histogram": [1, 2, 0, 0, 0],
    }
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 11
    assert {chunk["id"] for chunk in (role, *deltas, finish, spec, usage)} == {"r1"}


@pytest.mark.parametrize(
    ("plan", "wanted", "has_stats"),
    [
        ({"drafter": "ngram", "k": 1}, True, True),
        ({"drafter": "ngram", "k": 1}, False, False),
        ({"drafter": "off", "k": 0}, True, False),
        (None, True, False),
    ],
)
async def test_statistics_need_a_speculating_plan_and_the_flag(plan: Any, wanted: bool, has_stats: bool) -> None:
    """Whole answers carry `sglext` at response level, and only when something was verified."""
    params = {} if plan is None else {"outrider": plan}
    async with lane_and_client() as (_, client):
        for path in (CHAT, "/v1/completions"):
            body = {"return_spec_tokens_details": wanted, "custom_params": params}
            answer = await (await client.post(path, json=body)).json()
            assert ("sglext" in answer) is has_stats
            assert answer["choices"][0]["finish_reason"] == "stop"
            assert answer["usage"]["completion_tokens"] == len(SENTENCE)


async def test_a_completion_stream() -> None:
    """Text pieces, then an empty piece with the reason; no usage unless asked for."""
    async with lane_and_client() as (_, client):
        chunks = await stream_chunks(client, "/v1/completions", prompt="x")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "".join(SENTENCE)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * len(SENTENCE) + ["stop"]
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_bad_bodies_are_refused_in_the_flat_shape() -> None:
    """A body that is not JSON and a wrong plan get 400; /generate has no default script."""
    async with lane_and_client() as (_, client):
        for data in (b"{", b"[]", b'{"custom_params": {"outrider": {"drafter": "ngram", "k": 99}}}'):
            response = await client.post(CHAT, data=data)
            assert response.status == 400
            assert (await response.json())["object"] == "error"
        assert (await client.post("/generate", json={"text": "x"})).status == 404


async def test_framing_and_keep_alive() -> None:
    """One body step has a length, several are chunks, and one connection serves them all."""
    replies = iter([json_reply({"a": 1}), Reply(201, (("X-A", "b"),), (b"x", b"y")), Reply(503)])
    connector = aiohttp.TCPConnector(limit=1)
    async with (
        ScriptedLane(lambda _: next(replies)) as lane,
        aiohttp.ClientSession(lane.url, connector=connector) as client,
    ):
        whole = await client.post(CHAT)
        assert (whole.headers["Content-Length"], await whole.json()) == ("7", {"a": 1})
        async with client.post(CHAT) as chunked:
            assert (chunked.status, chunked.headers["X-A"]) == (201, "b")
            assert [chunk async for chunk, _ in chunked.content.iter_chunks()] == [b"x", b"y"]
        assert await (await client.post(CHAT)).read() == b""
        assert lane.num_connections == 1


async def test_requests_are_recorded_whole() -> None:
    """Method, lower-case headers and the body are kept, also of a chunked upload."""

    async def upload() -> AsyncIterator[bytes]:
        yield b'{"prompt":'
        yield b' "x"}'

    async with lane_and_client() as (lane, client):
        await client.post("/v1/completions", data=upload(), headers={"X-Request-Id": "q1"})
        (request,) = lane.requests
        assert (request.method, request.headers["x-request-id"]) == ("POST", "q1")
        assert request.json() == {"prompt": "x"}


async def test_steps_before_the_first_bytes_delay_the_head() -> None:
    """A pause at the start holds the status back; empty bytes send the head alone."""
    replies = iter([Reply(steps=(0.2, b"late")), Reply(steps=(b"", Fault.HANG))])
    async with lane_and_client(reply=lambda _: next(replies)) as (_, client):
        start = time.monotonic()
        assert await (await client.post(CHAT)).read() == b"late"
        assert time.monotonic() - start >= 0.19
        async with client.post(CHAT) as headed:
            assert headed.status == 200


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ((Fault.CLOSE,), aiohttp.ServerDisconnectedError),
        ((Fault.RESET,), aiohttp.ClientOSError),
        ((b"data", Fault.CLOSE), aiohttp.ClientPayloadError),
        ((b"data", 0.05, Fault.RESET), aiohttp.ClientError),
    ],
)
async def test_faults_are_seen_by_a_real_client(steps: Any, error: type[Exception]) -> None:
    """Closing and resetting break the exchange, before and after the head."""
    async with lane_and_client(reply=lambda _: Reply(steps=steps)) as (lane, client):
        with pytest.raises(error):
            await (await client.post(CHAT)).read()
        await until(lambda: lane.num_open == 0)
        assert lane.disconnects == []


async def test_a_wrong_content_length_is_sent_as_written() -> None:
    """A script may promise more than it sends."""
    reply = Reply(headers=(("Content-Length", "100"),), steps=(b"short", Fault.CLOSE))
    async with lane_and_client(reply=lambda _: reply) as (_, client):
        with pytest.raises(aiohttp.ClientPayloadError):
            await (await client.post(CHAT)).read()


@pytest.mark.parametrize("steps", [(Fault.HANG,), (b"first", Fault.HANG), (b"first", 60.0, b"second")])
async def test_a_client_that_leaves_is_noticed_at_once(steps: Any) -> None:
    """Leaving before the head, in a hang or in a pause ends the exchange and is recorded with its time."""
    async with lane_and_client(reply=lambda _: Reply(steps=steps)) as (lane, client):
        task = asyncio.create_task(client.post(CHAT))
        await until(lambda: lane.num_open == 1)
        await asyncio.sleep(0.05)
        left_s = time.monotonic()
        if task.done():
            task.result().close()
        else:
            task.cancel()
        await until(lambda: lane.disconnects)
        assert lane.num_open == 0
        assert lane.disconnects[0].path == CHAT
        assert 0 <= lane.disconnects[0].at_s - left_s < 2


async def test_a_reader_that_stops_reading_is_noticed_when_it_leaves() -> None:
    """A reply stuck on a full socket ends when the client closes."""
    reply = Reply(steps=(b"x" * 1024 * 1024,) * 64)
    async with lane_and_client(reply=lambda _: reply) as (lane, client):
        response = await client.post(CHAT)
        await asyncio.sleep(0.05)
        response.close()
        await until(lambda: lane.disconnects)


async def test_a_script_may_fall_back_to_the_default() -> None:
    """A reply function changes one route and leaves the other."""

    def script(request: Recorded) -> Reply:
        return error_reply(503) if request.path == CHAT else default_reply(request)

    async with lane_and_client(reply=script) as (_, client):
        assert (await client.post(CHAT, json={})).status == 503
        assert (await client.post("/v1/completions", json={})).status == 200


async def test_any_route_may_be_overridden() -> None:
    """A probe or the load report can fail as scripted too."""
    async with lane_and_client() as (lane, client):
        lane.overrides["/v1/loads"] = Reply(500)
        assert (await client.get("/v1/loads")).status == 500
        assert (await client.get("/ready")).status == 200
