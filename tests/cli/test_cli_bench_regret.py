"""Ratios of the policy to fixed settings: by cell, over the mix, and what counts as best."""

from __future__ import annotations

import pytest
from bench_traffic import CHAT, CODE, HOPELESS, NGRAM, hopeless_round, round_of, traffic

from outrider.cli.bench.regret import Regret
from outrider.cli.bench.samples import SETTING_OFF


def test_a_cell_is_held_against_its_own_best_setting() -> None:
    """And the mix against each cell's, in time for as many tokens."""
    measured = [
        one
        for number in range(3)
        for one in (*round_of(CODE, number, 10, 20, 20), *round_of(CHAT, number, 40, 20, 20))
    ]
    regret = Regret(measured)
    assert regret.ratio([CODE], regret.each_best) == pytest.approx(1.0)
    assert regret.ratio([CHAT], regret.each_best) == pytest.approx(0.5)
    assert regret.ratio(regret.cells, regret.each_best) == pytest.approx((1 / 20 + 1 / 40) / (2 / 20))
    assert regret.ratio([CODE], regret.off) == pytest.approx(2.0)


def test_the_best_single_setting_is_the_best_over_all_cells() -> None:
    """Not the one that wins most of them."""
    measured = [*round_of(CODE, 0, 10, 20, 20), *round_of(CHAT, 0, 40, 20, 40)]
    regret = Regret(measured)
    assert regret.best(regret.cells) == NGRAM
    assert regret.best([CHAT]) == SETTING_OFF
    assert regret.ratio(regret.cells, regret.single_best) == pytest.approx((2 / 20) / (1 / 20 + 1 / 40))


def test_what_choosing_by_cell_can_gain_is_told() -> None:
    """Whatever the policy did."""
    measured = [*round_of(CODE, 0, 10, 20, 1), *round_of(CHAT, 0, 40, 20, 1)]
    assert Regret(measured).headroom() == pytest.approx((2 / 20) / (1 / 20 + 1 / 40))
    assert Regret([]).headroom() is None


def test_luck_in_a_round_does_not_make_a_setting_the_best_of_that_round() -> None:
    """Equal settings that are fast by turns: the policy, as fast as their mean, loses nothing to either."""
    lucky = [round_of(CODE, number, *((30, 10) if number % 2 else (10, 30)), 20) for number in range(4)]
    regret = Regret([one for found in lucky for one in found])
    ratios = regret.ratios([CODE], regret.each_best)
    assert sorted(ratios) == pytest.approx([2.0, 2.0, 2.0, 2.0])


def test_rounds_that_were_not_finished_do_not_count() -> None:
    """Nor cells without a finished round."""
    measured = [*round_of(CODE, 0, 10, 20, 20), *round_of(CODE, 1, 10, 20, 20)[:2], *round_of(CHAT, 0, 1, 1, 1)[:1]]
    regret = Regret(measured)
    assert regret.cells == [CODE]
    assert regret.rounds([CODE]) == [0]
    assert Regret([]).ratio([], regret.off) is None


def test_speeds_are_medians_over_rounds() -> None:
    """Of a setting that a cell has."""
    measured = [one for n, speed in enumerate((10, 12, 99)) for one in round_of(CODE, n, speed, 20, 20)]
    assert Regret(measured).speed(CODE, SETTING_OFF) == pytest.approx(12)
    assert Regret(hopeless_round(0, 9.0)).speed(HOPELESS, NGRAM) is None


def test_useless_drafts_count_with_all_their_rounds() -> None:
    """The first, in which they are not known to be useless, included; an accepted one is seen. What differs between
    them widens the interval."""
    regret = Regret([*hopeless_round(0, 5.0), *hopeless_round(1, 10.0)])
    assert regret.slowdown() == (pytest.approx(1.5, rel=0.01), pytest.approx(0.37, rel=0.01))
    even = Regret([*hopeless_round(0, 9.0), *hopeless_round(1, 9.0)]).slowdown()
    assert even is not None and even[1] < 0.001
    assert (regret.cells, regret.hopeless, regret.num_accepted()) == ([], [HOPELESS], 0)
    assert Regret(hopeless_round(0, 5.0, num_accepted=2)).num_accepted() == 2
    assert Regret(round_of(CODE, 0, 10, 20, 20)).slowdown() is None


def test_what_the_policy_ran_is_counted() -> None:
    """Plans with their number, the most frequent first."""
    assert Regret([*round_of(CODE, 0, 10, 20, 20), *round_of(CODE, 1, 10, 20, 20)]).plans(CODE) == "ngram k=4 x2"
    assert Regret(traffic(CODE, 0, {SETTING_OFF: 1.0})).plans(CODE) == ""
