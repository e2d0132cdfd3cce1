"""Lanes that fail in every way: each request ends once, nothing is left behind, nothing is told twice."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.storm import Storm, storm
from e2e.storm_scripts import CHAT, FAULTS, script_of
from e2e.test_e2e_toy import num_at_engine
from gateway.world import eventually
from outrider.config import LaneSection
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import chat_reply
from test_app import read_until, start_command

#: `OUTRIDER_STORM_SEED=7 OUTRIDER_STORM_RUNS=2000` replays a storm that was printed.
SEED = int(os.environ.get("OUTRIDER_STORM_SEED", "0")) or time.time_ns() % 10**9
NUM_RUNS = int(os.environ.get("OUTRIDER_STORM_RUNS", "2000"))
NUM_AT_ONCE = 64


async def samples_of(run: Storm) -> dict[str, float]:
    """Sums of the gateway's metrics over their labels."""
    async with run.http.get(run.gateway.url + "/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    sums: Counter[str] = Counter()
    for family in families:
        for sample in family.samples:
            if sample.labels.get("route", CHAT) == CHAT:
                sums[sample.name] += sample.value
    return sums


async def test_two_thousand_random_requests_each_end_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever lanes and clients do: one outcome, one terminal event, every count back at zero, no task left."""
    began_s = time.monotonic()
    async with storm(SEED) as run:
        await run.run(NUM_RUNS, NUM_AT_ONCE)
        lasted_s = time.monotonic() - began_s
        gateway = run.gateway
        await eventually(lambda: not gateway.dispatcher.num_open and not any(one.num_open for one in run.lanes))
        faults = run.faults_of()
        ended = Counter(one.error_code or "ok" for outcomes in run.outcomes.values() for one in outcomes)
        with capsys.disabled():
            print(
                f"\nstorm of seed {SEED}: {NUM_RUNS} requests in {lasted_s:.1f} s, ended {dict(ended.most_common())}"
            )
        assert not faults, "\n".join(faults[:10]) + f"\n{len(faults)} in all"
        assert (gateway.admission.num_in_flight, gateway.admission.num_queued) == (0, 0)
        assert [lane.num_in_flight for lane in gateway.pool.lanes] == [0] * len(run.lanes)
        assert [gateway.keys.find(name).num_running for name in ("ada", "bob", "eve")] == [0, 0, 0]
        samples = await samples_of(run)
        assert samples["outrider_in_flight"] == samples["outrider_queued"] == 0
        assert samples["outrider_total_seconds_count"] == sum(ended.values())
        assert samples["outrider_request_errors_total"] == sum(ended.values()) - ended["ok"]
        assert sum(ended.values()) <= samples["outrider_requests_total"] <= NUM_RUNS
        assert ended["ok"] > NUM_RUNS / 40
        assert samples["outrider_retries_total"] > NUM_RUNS / 40
        assert samples["outrider_lane_attempts_total"] > samples["outrider_retries_total"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


def settled(run: Storm) -> bool:
    """Nothing is under way or counted as if it were."""
    gateway = run.gateway
    counts = [gateway.dispatcher.num_open, gateway.admission.num_in_flight, gateway.admission.num_queued]
    return not any([*counts, *(lane.num_in_flight for lane in gateway.pool.lanes)])


async def test_the_clock_of_the_wall_may_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours forward and back in the middle of requests: deadlines, queue, keys and pauses do not follow it."""
    async with storm(SEED) as run:
        real, jumps = time.time, itertools.cycle([3600.0, -3600.0, 86400.0, 0.0])
        monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
        monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * (real() + next(jumps))))
        await run.run(200, NUM_AT_ONCE)
        await eventually(lambda: settled(run))
        assert not run.faults_of()


async def test_an_engine_that_is_killed_and_stopped_in_a_storm(toy_folder: Path) -> None:
    """The embedded lane, killed and then frozen among random requests: each ends once, and it serves again after."""
    async with storm(SEED, engine=LaneSection(model=str(toy_folder), max_running=8)) as run:
        run.model_prompt = "ABCDABDCACBD"
        lane = run.gateway.pool.lanes[0]
        running = asyncio.create_task(run.run(150, 32))
        await asyncio.sleep(0.3)
        old_url = lane.url
        os.kill(pid_of(run), signal.SIGKILL)
        async with asyncio.timeout(60):
            await running
            while lane.url == old_url or not lane.is_ready:
                await asyncio.sleep(0.01)
        running = asyncio.create_task(run.run(100, 32, first=150))
        await asyncio.sleep(0.2)
        os.kill(pid_of(run), signal.SIGSTOP)
        await asyncio.sleep(0.5)
        os.kill(pid_of(run), signal.SIGCONT)
        await running
        await eventually(lambda: settled(run))
        faults = run.faults_of()
        assert not faults, "\n".join(faults[:10])
        assert (await samples_of(run))["outrider_in_flight"] == 0
        async with asyncio.timeout(60):
            while await num_at_engine(run.http, run.gateway):
                await asyncio.sleep(0.01)
        before = Counter(outcomes[0].status for outcomes in run.outcomes.values())
        await run.run(20, 4, first=1000)
        after = Counter(outcomes[0].status for outcomes in run.outcomes.values())
        assert after[200] > before[200]


def pid_of(run: Storm) -> int:
    """Of the engine's process."""
    process = run.gateway.supervisors[0].process
    assert process is not None
    return process.pid


async def test_a_gateway_that_stood_still_goes_on(tmp_path: Path) -> None:
    """Stopped for longer than a deadline, as if the machine slept: streams go on, deadlines have passed."""
    good = chat_reply(stream=True, delay_s=0.3)
    async with ScriptedLane(lambda _: good) as lane, aiohttp.ClientSession() as http:
        config = tmp_path / "config.yaml"
        config.write_text(f"lanes: [{{name: a, kind: url, urls: ['{lane.url}']}}]\n", encoding="utf-8")
        process = await start_command(tmp_path, "--config", str(config))
        try:
            url = (await read_until(process.stderr, r"http://127\.0\.0\.1:\d+")).group()
            await ready(http, url)
            body = {"messages": [{"role": "user", "content": "a"}], "stream": True}
            limited = asyncio.create_task(asked(http, url, body, {"x-outrider-deadline-ms": "1000"}))
            unlimited = asyncio.create_task(asked(http, url, body, {}))
            await asyncio.sleep(0.5)
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.5)
            process.send_signal(signal.SIGCONT)
            assert (await unlimited)[-2:] == ["[DONE]", ""]
            assert "deadline_exceeded" in (await limited)[-2]
            await ready(http, url)
        finally:
            process.kill()
            await process.communicate()


async def ready(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(60):
        while (await http.get(url + "/ready")).status != 200:
            await asyncio.sleep(0.05)


async def asked(http: aiohttp.ClientSession, url: str, body: object, headers: dict[str, str]) -> list[str]:
    """Data of the events of a stream."""
    async with http.post(url + CHAT, json=body, headers=headers) as response:
        return [one.removeprefix("data: ") for one in (await response.text()).split("\n\n")]


def test_a_seed_replays_its_scripts() -> None:
    """The script of a request follows from seed and number alone, and all faults come up."""
    scripts = [script_of(7, number) for number in range(2000)]
    assert scripts == [script_of(7, number) for number in range(2000)]
    assert {script.fault for script in scripts} == set(FAULTS)
    assert scripts != [script_of(8, number) for number in range(2000)]
