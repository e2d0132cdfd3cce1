"""What the gateway adds to a lane that runs."""

from __future__ import annotations

import pytest

from outrider.cli.bench.real_lane import PAIRS_PER_ROUND, measure, sentence, summarise
from outrider.cli.bench.servers import server
from outrider.errors import ConfigError


def test_pairs_over_a_lane_and_a_gateway_before_it():
    """Every pair is one request to each."""
    with server("direct") as lane:
        found = measure(lane.url, rounds=1)
    assert found.num_pairs == PAIRS_PER_ROUND
    assert found.direct > 0 and found.through > 0 and found.low <= found.added <= found.high


def test_the_aim_is_met_missed_or_undecided():
    """By where the interval of the median lies, which a hundred differences make narrower than all of them."""
    found = summarise([(0.01, 0.01 + i / 1e5) for i in range(101)])
    assert (found.num_pairs, found.direct) == (101, 10)
    assert found.added == pytest.approx(0.5) and 0.35 < found.low < found.added < found.high < 0.65
    assert "added 0.50 ms at the median" in sentence(found) and sentence(found).endswith("aim <= 1: met)")
    assert sentence(summarise([(0.01, 0.012)] * 50)).endswith("MISSED)")
    assert sentence(summarise([(0.01, 0.009), (0.01, 0.013)] * 50)).endswith("within the noise)")


def test_a_lane_that_is_not_there_is_named():
    """In one line."""
    with pytest.raises(ConfigError, match=r"--lane http://127\.0\.0\.1:9"):
        measure("http://127.0.0.1:9", rounds=1)
