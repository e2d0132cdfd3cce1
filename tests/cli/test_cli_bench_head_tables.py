"""Aims of trained heads: held against greedy answers, and a missed one says where the time went."""

from __future__ import annotations

import pytest
from bench_samples import sample

from outrider.cli.bench.head_tables import head_aims, head_rows
from outrider.cli.bench.samples import Samples


def test_nothing_measured_is_neither_met_nor_missed() -> None:
    """All aims stand there."""
    assert [(aim.figure, aim.is_met) for aim in head_aims(Samples([]), 4)] == [(None, None)] * 5


def test_aims_are_of_the_right_answers() -> None:
    """Agreement from the chain, lengths from the trees, speed from the best way to draft; code counts for itself."""
    samples = Samples([
        sample("off", group="chat", tokens_per_s=10.0),
        sample("eagle2 chain", 4, group="chat", tokens_per_s=9.0, histogram=(4, 2, 2, 1, 1)),
        sample("eagle2 dynamic", 4, group="chat", tokens_per_s=12.0, histogram=(2, 4, 2, 1, 1), draft_s=0.2),
        sample("eagle2 static", 4, group="chat", tokens_per_s=8.0, histogram=(5, 2, 1, 1, 1)),
        sample("off", group="code", case="two", tokens_per_s=10.0),
        sample("eagle2 dynamic", 4, group="code", case="two", tokens_per_s=17.0, histogram=(0, 0, 0, 0, 5)),
        sample("ngram", 4, group="code", case="two", tokens_per_s=50.0, histogram=(0, 0, 0, 0, 5)),
    ])  # fmt: skip
    agreement, length, gain, chat, code = head_aims(samples, 4)
    assert (agreement.figure, agreement.is_met) == (pytest.approx(0.6), True)
    assert (length.figure, length.is_met) == (pytest.approx(2.5), True)
    assert (gain.figure, gain.is_met) == (pytest.approx(2.5 / 2.1), True)
    assert (chat.figure, chat.is_met, chat.by) == (pytest.approx(1.2), False, "eagle2 dynamic k=4")
    # Ten steps of 1/12 s each against plain ones of 1/10, of which 0.02 s went into drafts.
    assert chat.why == "a step writes 2.50 tokens and takes 0.83 plain ones: drafts 0.20, verifying 0.63"
    assert (code.figure, code.is_met, code.why) == (pytest.approx(1.7), True, "")


def test_a_row_for_each_way_and_temperature() -> None:
    """With the gain, and how often a step that got so far got further."""
    rows = head_rows(Samples([sample("off"), sample("medusa tree", 4, tokens_per_s=15.0, histogram=(5, 3, 2))]))
    greedy = {row["drafts"]: row for row in rows if row["T"] == "0.0"}
    assert greedy["medusa tree k=4"]["against off"] == pytest.approx(1.5)
    assert greedy["medusa tree k=4"]["agreement by depth"] == "0.50 0.40 0.00"
