"""The formula beside what was measured."""

from __future__ import annotations

import pytest
from bench_samples import sample

from outrider.cli.bench.formula import acceptance, formula_rows
from outrider.cli.bench.samples import Samples
from outrider.policy.speedup import speedup


def test_acceptance_counts_every_pass_that_stopped_short() -> None:
    """A full pass shows k successes, another its successes and one failure, drafts or not."""
    assert acceptance([(2, 0, 1), (0, 1)], 2) == pytest.approx(3 / 6)
    assert acceptance([(0, 0, 5)], 2) == 1.0
    assert acceptance([(4,)], 3) == 0.0


def test_a_run_that_obeys_the_formula_has_no_error() -> None:
    """k of 1, half of the passes full: 1.5 tokens a pass of known cost give the predicted speed-up."""
    # 20 decoded tokens in passes of 1 and 2 tokens on average 4/3: 15 passes, of which 5 accept.
    drafted = sample("ngram", 1, tokens_per_s=12.0, histogram=(10, 5), draft_s=0.15)
    (row,) = formula_rows(Samples([sample("off"), drafted]))
    seconds = 20 / 12
    assert row["alpha"] == pytest.approx(1 / 3)
    assert row["c"] == pytest.approx(0.15 / 15 / 0.1)
    assert row["verify cost"] == pytest.approx((seconds - 0.15) / 15 / 0.1)
    assert row["predicted"] == pytest.approx(speedup(1 / 3, 1, row["c"], row["verify cost"]))
    assert row["measured"] == pytest.approx(1.2)
    assert row["error %"] == 0.0


def test_an_uneven_run_shows_its_error() -> None:
    """Passes that accept all or nothing emit fewer tokens than even odds of the same acceptance promise."""
    lumpy = sample("suffix", 4, histogram=(5, 0, 0, 0, 3))
    (row,) = formula_rows(Samples([sample("off"), lumpy]))
    assert row["alpha"] == pytest.approx(12 / 17)
    assert row["error %"] != 0.0


def test_without_verified_answers_there_is_no_row() -> None:
    """Neither for off, nor for an answer whose first token ended it, nor without off on the same case."""
    assert formula_rows(Samples([sample("off"), sample("ngram", 3), sample("hf")])) == []
    assert formula_rows(Samples([sample("off", case="other"), sample("ngram", 1, histogram=(1, 1))])) == []
