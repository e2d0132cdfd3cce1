"""The figures of `outrider bench gateway`, and its servers in processes of their own."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from outrider.cli.bench.gateway import Figures, _measure, gateway_aims, summarise
from outrider.cli.bench.peers import peer_server
from outrider.cli.bench.servers import server
from outrider.cli.main import app
from outrider.errors import ConfigError


def figures(**fields):
    seen = Figures("x", call_s=[0.002] * 9 + [0.01], added_p50_s=[0.001, 0.003, 0.002], first_byte_s=[0.004])
    seen.lag_s, seen.per_second, seen.abort_s = [0.001], [100.0, 300.0], {"whole": [0.01, 0.02]}
    for name, value in fields.items():
        setattr(seen, name, value)
    return seen


def test_a_summary_takes_medians_of_rounds_and_differences_to_the_lane():
    """In milliseconds."""
    row = summarise(figures(), figures(call_s=[0.001], first_byte_s=[0.001], lag_s=[0.0]))
    assert row.added_p50 == pytest.approx(2.0)
    assert row.added_p99 == pytest.approx(9.0)
    assert row.requests_per_s == pytest.approx(200.0)
    assert row.added_first_byte == pytest.approx(3.0)
    assert row.added_lag_p99 == pytest.approx(1.0)
    assert row.abort_max == pytest.approx(20.0)


def test_a_lane_that_was_never_told_misses_the_aim():
    """One case is enough."""
    row = summarise(figures(abort_s={"whole": [0.01], "mid-stream": [None]}), figures())
    assert row.abort_max is None
    met = {aim.aim: aim.is_met for aim in gateway_aims(row)}
    assert not met["abort_max"] and not met["requests_per_s"] and not met["added_p50"]


def test_an_unknown_peer_is_named():
    """Before anything is installed."""
    with pytest.raises(ConfigError, match="sglang-router"), peer_server("nginx", "http://nowhere"):
        pass


async def test_one_round_over_the_lane_and_our_gateway():
    """Every figure is there, aborts reach the lane, and the processes end with the block."""
    with server("direct") as lane, server("outrider", lane.url) as ours:
        direct, seen = await _measure([lane, ours], rounds=1)
    row = summarise(seen, direct)
    assert row.requests_per_s > 0 and row.resident_mb > 10
    assert len(seen.lag_s) == len(direct.lag_s) > 0
    assert set(seen.abort_s) == {"whole", "silent prefill", "mid-stream"}
    assert any(told_s is not None for times_s in seen.abort_s.values() for told_s in times_s)


@pytest.mark.parametrize("option", ["--peer", "--json"])
def test_what_a_running_lane_gives_no_figures_for_is_refused_by_name(option):
    """It would be ignored."""
    result = CliRunner().invoke(app, ["bench", "gateway", "--lane", "http://127.0.0.1:1", option, "x"])
    assert isinstance(result.exception, ConfigError)
    assert option in str(result.exception)
