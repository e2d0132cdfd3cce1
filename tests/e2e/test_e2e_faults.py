"""Lanes that fail in every way: each request ends once, nothing is left behind, nothing is told twice."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.storm import CHAT, FAULTS, Storm, script_of, storm
from gateway.world import eventually

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
        assert ended["ok"] > NUM_RUNS / 10
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_seed_replays_its_scripts() -> None:
    """The script of a request follows from seed and number alone, and all faults come up."""
    scripts = [script_of(7, number) for number in range(2000)]
    assert scripts == [script_of(7, number) for number in range(2000)]
    assert {script.fault for script in scripts} == set(FAULTS)
    assert scripts != [script_of(8, number) for number in range(2000)]
