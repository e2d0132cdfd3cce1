"""The load bench in small: real processes, few streams; and how its figures are made."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest

from outrider.cli.bench.load import Load, Measured, lag_counts, quantile_edge, summarise, verdicts
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
    assert quantile_edge({}, 0.5) == math.inf


def test_memory_is_per_stream_and_growth_is_over_time():
    """A gateway that grows is seen, and misses the aim."""
    flat = Measured(idle_mb=50.0, resident_mb=[52.0] * 10, lag_counts={0.01: 5.0}, relay_s=[0.001], num_events=40)
    summary = summarise(flat, LOAD)
    assert (summary.kb_per_stream, summary.growth_mb, summary.events_per_s) == (pytest.approx(20.48), 0.0, 4.0)
    assert all(is_met for *_, is_met in verdicts(summary))
    growing = summarise(Measured(idle_mb=50.0, resident_mb=[52.0 + 2 * i for i in range(10)]), LOAD)
    assert {name for name, *_, is_met in verdicts(growing) if not is_met} == {
        "lag_p99_ms",
        "kb_per_stream",
        "growth_mb",
    }
    with pytest.raises(ValueError, match="too few"):
        summarise(Measured(resident_mb=[1.0]), LOAD)


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
