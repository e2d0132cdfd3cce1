"""Gateway and engine process together on the toy checkpoint: limits, faults, departures."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from outrider import AsyncClient, LaneFailed
from outrider.app import Gateway, serving
from outrider.config import Config, LaneSection, ServerSection

PROMPT = [{"role": "user", "content": "ABCDABDCACBD"}]
#: Long enough that nothing ends by itself during a test.
LONG = 1900


@asynccontextmanager
async def running(folder: Path, **lane: Any) -> AsyncIterator[Gateway]:
    """A gateway over one engine process, ready."""
    lanes = (LaneSection(model=str(folder), **{"max_running": 8, **lane}),)
    server = ServerSection(port=0, shutdown_grace_s=0)
    async with serving(Config(server=server, lanes=lanes)) as gateway:
        await asyncio.wait_for(gateway.pool.lanes[0].wait_until_ready(), 60)
        yield gateway


async def num_at_engine(session: aiohttp.ClientSession, gateway: Gateway) -> int:
    async with session.get(f"{gateway.pool.lanes[0].url}/v1/loads") as response:
        load = (await response.json())["loads"][0]
        return load["num_running_reqs"] + load["num_waiting_reqs"]


async def until_there_are(session: aiohttp.ClientSession, gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(60):
        while await num_at_engine(session, gateway) != count:
            await asyncio.sleep(0.001)


async def num_emitted(session: aiohttp.ClientSession, gateway: Gateway) -> int:
    """Tokens of the engine so far."""
    async with session.get(f"{gateway.pool.lanes[0].url}/metrics") as response:
        (line,) = re.findall(r"^sglang:generation_tokens_total (.+)$", await response.text(), re.MULTILINE)
    return int(float(line))


@pytest.mark.parametrize("phase", ["before headers", "mid-stream", "non-streaming", "waiting in the engine"])
async def test_a_client_that_leaves_frees_its_engine_slot(toy_folder: Path, phase: str) -> None:
    """From the client's departure to the freed slot the engine writes, at best of three, few of 1,900 tokens: what it
    writes in 50 ms, however fast it is."""
    written = []
    async with (
        running(toy_folder, max_running=1) as gateway,
        aiohttp.ClientSession() as session,
    ):
        body = {"messages": PROMPT, "max_tokens": LONG, "stream": phase != "non-streaming"}
        url = f"{gateway.url}/v1/chat/completions"
        for _ in range(3):
            blocker = None
            if phase == "waiting in the engine":
                blocker = asyncio.create_task(_read(session, url, body))
                await until_there_are(session, gateway, 1)
            request = asyncio.create_task(_read(session, url, body))
            await until_there_are(session, gateway, 1 if blocker is None else 2)
            if phase == "mid-stream":
                await asyncio.sleep(0.1)
            before = await num_emitted(session, gateway)
            request.cancel()
            await asyncio.wait([request])
            await until_there_are(session, gateway, 0 if blocker is None else 1)
            written.append(await num_emitted(session, gateway) - before)
            if blocker is not None:
                blocker.cancel()
                await asyncio.wait([blocker])
                await until_there_are(session, gateway, 0)
        assert gateway.dispatcher.num_open == 0
    assert min(written) < 150, written


async def _read(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    async with session.post(url, json=body) as response:
        await response.read()


async def test_sixty_four_requests_at_once_all_complete(toy_folder: Path) -> None:
    """Streamed and not, speculated and not, through one gateway to one engine process."""
    async with running(toy_folder) as gateway, AsyncClient(f"{gateway.url}/v1") as client:

        async def one(i: int) -> int:
            hints: dict[str, Any] = [{}, {"off": True}, {"k": 3}, {"task": "quote"}][i % 4]
            if i % 2:
                return (await client.chat(PROMPT, max_tokens=5 + i, temperature=0, **hints)).usage.completion_tokens
            async with client.chat_stream(PROMPT, max_tokens=5 + i, temperature=0, **hints) as stream:
                return (await stream.result()).usage.completion_tokens

        assert await asyncio.gather(*(one(i) for i in range(64))) == [5 + i for i in range(64)]


async def test_a_killed_engine_fails_its_requests_and_comes_back(toy_folder: Path) -> None:
    """Running requests end with a typed error, streamed or not; after the restart new ones succeed."""
    async with running(toy_folder) as gateway, AsyncClient(f"{gateway.url}/v1", max_retries=0) as client:
        lane = gateway.pool.lanes[0]
        old_url = lane.url
        whole = asyncio.create_task(client.chat(PROMPT, max_tokens=LONG, temperature=0))
        async with client.chat_stream(PROMPT, max_tokens=LONG, temperature=0) as stream:
            await anext(stream)
            os.kill(_engine_pid(gateway), signal.SIGKILL)
            with pytest.raises(LaneFailed):
                await stream.result()
        with pytest.raises(LaneFailed):
            await whole
        async with asyncio.timeout(60):
            while gateway.supervisors[0].process is None or lane.url == old_url or not lane.is_ready:
                await asyncio.sleep(0.01)
        assert (await client.chat(PROMPT, max_tokens=4, temperature=0)).usage.completion_tokens == 4


async def test_no_engine_outlives_its_gateway(toy_folder: Path) -> None:
    """After the shutdown the process is gone."""
    async with running(toy_folder) as gateway:
        pid = _engine_pid(gateway)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _engine_pid(gateway: Gateway) -> int:
    process = gateway.supervisors[0].process
    assert process is not None
    return process.pid


async def test_the_engine_s_own_route_goes_through_too(toy_folder: Path) -> None:
    """`/generate` whole and streamed, speculated and not, with one text; what it lacks goes there as chat."""
    async with running(toy_folder) as gateway, aiohttp.ClientSession(gateway.url) as session:
        body = {"text": "ABCDABCDABCD", "sampling_params": {"temperature": 0, "max_new_tokens": 24}}
        texts = set()
        for hints in ({"off": True}, {"drafter": "ngram", "k": 4}):
            async with session.post("/generate", json=body | {"outrider": hints}) as response:
                answer = await response.json()
            report = answer["outrider"]
            assert report["effective"] == ({"drafter": "off", "k": 0} if "off" in hints else hints)
            assert (report["observed"] is None) is ("off" in hints)
            texts.add(answer["text"])
            async with session.post("/generate", json=body | {"outrider": hints, "stream": True}) as response:
                *_, last, done = (await response.text()).strip().split("\n\n")
            assert done == "data: [DONE]"
            streamed = json.loads(last.removeprefix("data: "))
            assert streamed["outrider"]["observed"] == report["observed"]
            texts.add(streamed["text"])
        assert len(texts) == 1
        for path, fields in (
            ("/v1/responses", {"input": "A"}),
            ("/v1/messages", {"messages": PROMPT, "max_tokens": 3}),
        ):
            async with session.post(path, json=fields) as response:
                answer = await response.json()
                assert (response.status, answer["outrider"]["lane"]) == (200, "embedded")
