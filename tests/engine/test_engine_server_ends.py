"""How requests end over real HTTP: clients that leave, aborts, deadlines, many at once, several choices."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.test_engine_server import NGRAM, PROMPT, Client, chat, serve


@pytest.fixture
async def client(toy_folder: Path) -> AsyncIterator[Client]:
    async for one in serve(toy_folder):
        yield one


async def until_running(client: Client, num: int = 1) -> None:
    async with asyncio.timeout(60):
        while await client.num_running() < num:
            await asyncio.sleep(0.002)


async def num_emitted(client: Client) -> int:
    async with client.session.get(client.url + "/metrics") as response:
        (line,) = re.findall(r"^sglang:generation_tokens_total (.+)$", await response.text(), re.MULTILINE)
    return int(float(line))


async def left(client: Client, request: asyncio.Task[Any]) -> int:
    """The client goes once its request runs; tokens that come after that, until the engine is idle."""
    await until_running(client)
    before = await num_emitted(client)
    request.cancel()
    await asyncio.wait([request])
    await client.until_idle()
    return await num_emitted(client) - before


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_frees_the_slot(client: Client, is_stream: bool) -> None:
    """Mid-stream or waiting for a whole answer: the engine drops the request at once."""
    request = asyncio.create_task(client.post("/v1/chat/completions", chat(max_tokens=1900, stream=is_stream)))
    assert await left(client, request) < 900


async def test_a_client_that_leaves_during_prefill_frees_the_slot(toy_folder: Path) -> None:
    """A long prompt is given up between two of its chunks."""
    async for client in serve(toy_folder, max_prefill_rows=1):
        body = {"prompt": "ABCD" * 480, "max_tokens": 4, "stream": True}
        request = asyncio.create_task(client.post("/v1/completions", body))
        assert await left(client, request) == 0


async def test_abort_ends_exactly_the_named_request(client: Client) -> None:
    """A stream ends with the reason `abort`; ids that begin with the aborted one live on; unknown ids do nothing."""
    first = asyncio.create_task(client.events("/v1/chat/completions", chat(max_tokens=1900, rid="job-1")))
    other = asyncio.create_task(client.events("/v1/chat/completions", chat(max_tokens=1900, rid="job-10")))
    await until_running(client, 2)
    assert (await client.post("/abort_request", {"rid": "job"}))[0] == 200
    assert (await client.post("/abort_request", {"rid": "job-1"}))[0] == 200
    assert (await first)[-1]["choices"][0]["finish_reason"] == "abort"
    assert (await other)[-1]["choices"][0]["finish_reason"] == "length"


async def test_abort_of_a_whole_answer_is_an_error(client: Client) -> None:
    """Without a stream, an aborted request must not look like a short answer."""
    waiting = asyncio.create_task(client.post("/v1/chat/completions", chat(max_tokens=1900, rid="x")))
    await until_running(client)
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
    await until_running(client, 4)
    await client.post("/abort_request", {"rid": "many"})
    assert (await whole)[0] == 499
    await client.until_idle()
    async with client.session.post(client.url + "/generate", json={**body, "stream": True}) as response:
        await response.content.readany()
        await until_running(client, 4)
        before = await num_emitted(client)
    await client.until_idle()
    assert await num_emitted(client) - before < 3000


async def test_a_deadline_ends_a_request(client: Client) -> None:
    """A whole answer becomes 408, a stream says so in its last chunk; time enough changes nothing."""
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 1500}

    async def post(deadline: str, **more: Any) -> tuple[int, bytes]:
        headers = {"x-outrider-deadline-ms": deadline}
        url = f"{client.url}/v1/completions"
        async with client.session.post(url, json={**body, **more}, headers=headers) as response:
            return response.status, await response.read()

    began_s = time.monotonic()
    assert (await post("600000"))[0] == 200
    deadline_ms = int(250 * (time.monotonic() - began_s))  # a quarter of what all of it takes
    status, raw = await post("1")
    assert (status, json.loads(raw)["code"]) == (408, "aborted")
    async with asyncio.timeout(60):
        while (streamed := await post(str(deadline_ms), stream=True))[0] == 408:
            deadline_ms = deadline_ms * 5 // 4 + 1  # it ended before the head of the answer was sent
    status, raw = streamed
    assert status == 200 and b'"code":408' in raw and b'"finish_reason":"abort"' in raw
    assert (await post("600000", max_tokens=4))[0] == 200
    for bad in ("0", "-5", "1.5", "soon", ""):
        status, raw = await post(bad)
        assert (status, json.loads(raw)["param"]) == (400, "x-outrider-deadline-ms")
    await client.until_idle()
