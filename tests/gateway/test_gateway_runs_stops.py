"""Runs in the background when gateways stop, are killed, or share a store: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest

from gateway.runs_world import (
    BACKGROUND,
    EVENTS,
    RUNS,
    TEXT,
    error_of,
    hang_after,
    paced,
    read_events,
    section,
    show,
    start,
    text_of,
)
from gateway.world import CHAT, MESSAGES, eventually, world
from outrider.app import serving
from outrider.config import AdmissionSection, Config, ServerSection
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Reply, chat_reply


async def test_a_gateway_that_is_stopped_fails_what_had_begun_and_leaves_the_rest(tmp_path):
    """The next one on the same file runs what had waited, once; what had begun says why it ended."""
    admission = AdmissionSection(max_in_flight=1)
    async with world(lambda _request: hang_after(3), runs=section(tmp_path), admission=admission) as w:
        begun, waiting = await start(w), await start(w, headers={"x-outrider-priority": "bulk"})
        seen = await read_events(w, begun, most=4)
    async with world(runs=section(tmp_path)) as w:
        events = await read_events(w, begun)
        assert events[:4] == seen and error_of(events)["code"] == "gateway_stopped"
        assert (await show(w, begun))["status"] == "failed"
        resumed = await read_events(w, waiting)
        assert text_of(resumed) == TEXT and (await show(w, waiting))["status"] == "completed"
        assert len([one for one in w.scripted.requests if one.path == CHAT]) == 1
        assert w.outcomes[0][0].claim.priority == "bulk"


async def test_a_gateway_that_is_to_stop_begins_no_run_more(tmp_path):
    """Though a place becomes free while it waits for what has begun, which is completed: the next one does it."""
    admission = AdmissionSection(max_in_flight=1)
    goes_on = asyncio.Event()
    slow = Reply(200, EVENTS, (goes_on, *chat_reply(stream=True).steps))
    server = {"shutdown_grace_s": 60.0}

    async def go_on_when_it_stops(w):
        with suppress(aiohttp.ClientError):  # it listens no more
            while True:
                async with aiohttp.ClientSession() as http, http.get(w.gateway.url + "/live"):
                    await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        goes_on.set()

    async with world(lambda _request: slow, runs=section(tmp_path), admission=admission, server=server) as w:
        begun, waiting = await start(w), await start(w)
        await eventually(lambda: any(one.path == CHAT for one in w.scripted.requests))
        scripted, going_on = w.scripted, asyncio.create_task(go_on_when_it_stops(w))
    await going_on
    assert len([one for one in scripted.requests if one.path == CHAT]) == 1
    async with world(runs=section(tmp_path)) as w:
        assert text_of(await read_events(w, begun)) == TEXT
        assert (await show(w, begun))["status"] == "completed"
        assert text_of(await read_events(w, waiting)) == TEXT


async def test_random_stops_lose_and_repeat_nothing(tmp_path):
    """Four lives of the gateway on one file: every run ends once, and all readers of it agree."""
    rng, seen = random.Random(7), {}
    for life in range(4):
        admission, server = AdmissionSection(max_in_flight=2), {"shutdown_grace_s": 0}
        async with world(paced(0.01), runs=section(tmp_path), admission=admission, server=server) as w:
            for _ in range(3 if life < 3 else 0):
                seen[await start(w)] = []

            async def look(run, most, w=w):
                after = seen[run][-1][0] if seen[run] else 0
                seen[run] += await read_events(w, run, after, most)

            if life < 3:
                looks = [asyncio.create_task(look(run, rng.randint(1, 9))) for run in seen]
                await asyncio.wait(looks, return_when=asyncio.FIRST_COMPLETED)
                for task in looks:
                    task.cancel()
                await asyncio.gather(*looks, return_exceptions=True)
            else:
                await asyncio.gather(*(look(run, None) for run in seen))
                shown = [await show(w, run) for run in seen]
    for (run, events), one in zip(seen.items(), shown, strict=True):
        assert [number for number, _ in events] == list(range(1, len(events) + 1)), run
        assert len(events) == one["num_events"]
        if one["status"] == "completed":
            assert text_of(events) == TEXT
        else:
            assert (one["status"], error_of(events)["code"]) == ("failed", "gateway_stopped")
            assert TEXT.startswith(text_of(events[:-1]))
    assert "completed" in {one["status"] for one in shown}, "at each of three stops two of nine were under way"


CHILD = """
import asyncio, sys
from outrider.app import serving
from outrider.config import AdmissionSection, Config, RunsSection, ServerSection
from outrider.runtimes.lane import Lane

async def main():
    config = Config(server=ServerSection(port=0), runs=RunsSection(url=sys.argv[1], lease_s=0.4),
                    admission=AdmissionSection(max_in_flight=1))
    async with serving(config, lanes=[lane := Lane("scripted", sys.argv[2])]) as gateway:
        await lane.wait_until_ready()
        print(gateway.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_gateway_s_runs_are_taken_up(tmp_path):
    """By the next one, once the lease is over: failed where tokens had come, run where none had."""
    url = section(tmp_path).url
    async with ScriptedLane(lambda _request: hang_after(3)) as scripted:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, url, scripted.url, stdout=asyncio.subprocess.PIPE
        )
        try:
            gateway = (await child.stdout.readline()).decode().strip()
            async with aiohttp.ClientSession() as http:
                ids = []
                for _ in range(2):
                    body = {"messages": MESSAGES, "stream": True, **BACKGROUND}
                    async with http.post(gateway + CHAT, json=body) as response:
                        ids.append((await response.json())["id"])
                async with http.get(f"{gateway}{RUNS}{ids[0]}/events") as response:
                    await response.content.readany()
        finally:
            os.kill(child.pid, signal.SIGKILL)
            await child.communicate()
    async with world(runs=section(tmp_path)) as w:
        failed, resumed = [await read_events(w, run) for run in ids]
        assert error_of(failed)["code"] == "gateway_stopped" and len(failed) > 1
        assert text_of(resumed) == TEXT
        assert [(await show(w, run))["status"] for run in ids] == ["failed", "completed"]


@asynccontextmanager
async def two_gateways(folder, reply):
    """Two gateways on one store and one lane: their URLs and a session."""
    config = Config(server=ServerSection(port=0, shutdown_grace_s=0), runs=section(folder, lease_s=4.0))
    async with ScriptedLane(reply) as scripted, aiohttp.ClientSession() as http:
        lanes = [Lane(str(i), scripted.url) for i in range(2)]
        async with serving(config, lanes=lanes[:1]) as one, serving(config, lanes=lanes[1:]) as two:
            for lane in lanes:
                await lane.wait_until_ready()
            yield one.url, two.url, http


async def test_any_gateway_on_the_store_shows_follows_and_cancels(tmp_path):
    """What runs in another one, which is told."""
    async with two_gateways(tmp_path, lambda _request: hang_after(2)) as (one, two, http):
        body = {"messages": MESSAGES, "stream": True, **BACKGROUND}
        async with http.post(one + CHAT, json=body) as response:
            run = (await response.json())["id"]
        async with http.get(f"{two}{RUNS}{run}/events") as response:
            first = await response.content.readany()
            async with http.post(f"{two}{RUNS}{run}/cancel") as cancel:
                assert cancel.status == 200
            rest = await response.read()
        assert b"id: 1\n" in first and b"run_cancelled" in rest
        async with http.get(one + RUNS + run) as response:
            assert (await response.json())["status"] == "cancelled"


async def is_at_lane(http, gateway):
    async with http.get(gateway + "/metrics") as page:
        return "\noutrider_in_flight 1.0\n" in await page.text()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_run_of_another_gateway_ends_before_it_is_forgotten(tmp_path, stream):
    """Its lane is told, and its readers, and the request that deletes it returns when that is done."""
    async with two_gateways(tmp_path, lambda _request: hang_after(2)) as (one, two, http):
        body = {"messages": MESSAGES, "stream": stream, **BACKGROUND}
        async with http.post(one + CHAT, json=body) as response:
            run = (await response.json())["id"]
        async with http.get(f"{one}{RUNS}{run}/events") as response:
            reading = asyncio.create_task(response.read())
            async with asyncio.timeout(60):
                while not await is_at_lane(http, one):
                    await asyncio.sleep(0.01)
            async with http.delete(two + RUNS + run) as deleted:
                assert deleted.status == 200
            assert not await is_at_lane(http, one)
            assert b"run_cancelled" in await reading
        async with http.get(two + RUNS + run) as response:
            assert response.status == 404
