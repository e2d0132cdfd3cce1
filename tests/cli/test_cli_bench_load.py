"""The load bench in small: real processes, few streams; and how its figures are made."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys

import pytest

from outrider.cli.bench.load import Load, Measured, lag_counts, load_aims, measure, quantile_edge, summarise
from outrider.cli.bench.servers import Server
from outrider.telemetry.metrics import Metrics

LOAD = Load(num_streams=100, interval_ms=100, stream_s=5.0, total_s=10.0)


def test_the_lag_is_read_from_the_page():
    """Cumulative buckets; the quantile is the edge that holds it, infinity beyond the last."""
    metrics = Metrics()
    for lag_s in [0.0005] * 98 + [0.03, 0.2]:
        metrics.loop_lagged(lag_s)
    counts = lag_counts(metrics.render({}).decode())
    assert (quantile_edge(counts, 0.98), quantile_edge(counts, 0.99), quantile_edge(counts, 1.0)) == (
        0.001,
        0.05,
        0.25,
    )
    assert quantile_edge({0.01: 1.0, math.inf: 2.0}, 1.0) == math.inf
    assert quantile_edge({}, 0.5) is None and quantile_edge({0.01: 0.0, math.inf: 0.0}, 0.5) is None


def test_memory_is_per_stream_and_growth_is_over_time():
    """A gateway that grows is seen, and misses the aim."""
    flat = Measured(idle_mb=50.0, resident_mb=[52.0] * 10, lag_counts={0.01: 5.0}, relay_s=[0.001], num_events=40)
    summary = summarise(flat, LOAD)
    assert (summary.kb_per_stream, summary.growth_mb, summary.events_per_s) == (pytest.approx(20.48), 0.0, 4.0)
    assert all(aim.is_met for aim in load_aims(summary))
    growing = Measured(idle_mb=50.0, resident_mb=[52.0 + 2 * i for i in range(10)], num_events=40)
    verdicts = {aim.aim: aim.is_met for aim in load_aims(summarise(growing, LOAD))}
    assert verdicts == {"lag_p99_ms": None, "kb_per_stream": False, "growth_mb": False, "num_failures": True}


def test_what_was_not_seen_meets_no_aim():
    """A run in which nothing came, or that was too short for samples of memory."""
    nothing = summarise(Measured(idle_mb=50.0, resident_mb=[50.0] * 10, lag_counts={0.01: 0.0}), LOAD)
    assert {aim.is_met for aim in load_aims(nothing)} == {None}
    assert nothing.relay_p50_ms is None
    short = summarise(Measured(idle_mb=50.0, resident_mb=[50.0], lag_counts={0.01: 9.0}, num_events=3), LOAD)
    assert {aim.aim: aim.is_met for aim in load_aims(short)} == {
        "lag_p99_ms": True, "kb_per_stream": None, "growth_mb": None, "num_failures": True,
    }  # fmt: skip


async def test_a_gateway_that_takes_no_stream_is_a_failure_of_each(tmp_path):
    """And does not leave the run waiting for streams that never open."""

    async def answer(reader, writer):
        is_stream = (await reader.readline()).startswith(b"POST")
        if not is_stream:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        gateway = Server("closing", f"http://127.0.0.1:{port}", os.getpid())
        seen = await asyncio.wait_for(measure(gateway, Load(3, 10, 1.0, 60.0)), 60)
    assert len(seen.failures) == 3 and seen.num_done == 0
    assert {aim.aim: aim.is_met for aim in load_aims(summarise(seen, LOAD))}["num_failures"] is False


def test_the_command_prints_figures_and_conditions(tmp_path):
    """Forty streams for six seconds: none fails, every aim has its verdict."""
    file = tmp_path / "load.json"
    options = ["--streams", "40", "--interval-ms", "50", "--stream-s", "1", "--minutes", "0.1", "--json", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "outrider", "bench", "load", *options],
        capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for word in ("lag_p99_ms", "kb_per_stream", "growth_mb", "conditions:", "num_streams 40"):
        assert word in done.stdout
    written = json.loads(file.read_text())
    assert written["summary"]["num_failures"] == 0
    assert written["summary"]["num_done"] >= 3 * 40
    assert written["summary"]["events_per_s"] > 100
