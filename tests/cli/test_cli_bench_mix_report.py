"""The rows and aims of mixed traffic."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_traffic import CHAT, CODE, NGRAM, hopeless_round, request, round_of, traffic

from outrider.cli.bench.aims import Aim
from outrider.cli.bench.mix_report import missing_cells, mix_aims, mix_parts, mix_plots, write_mix_report
from outrider.cli.bench.regret import Regret
from outrider.cli.bench.samples import SETTING_OFF


def by_name(regret: Regret) -> dict[str, Aim]:
    return {aim.aim: aim for aim in mix_aims(regret)}


def test_a_row_shows_every_setting_and_what_the_policy_ran() -> None:
    """Useless drafts have no fixed settings beside off."""
    regret = Regret([*round_of(CODE, 0, 10, 20, 18), *round_of(CODE, 1, 10, 20, 22), *hopeless_round(0, 9.0)])
    code, hopeless = mix_parts(regret)["tokens per second of all requests together"]
    assert (code["workload"], code["batch"], code["off"], code["ngram k=4"]) == ("code", 1, 10, 20)
    assert (code["best"], code["policy / best"], code["policy ran"]) == (
        "ngram k=4",
        pytest.approx(1.0),
        "ngram k=4 x2",
    )
    assert (code["policy / off"], code["by round"]) == (pytest.approx(2.0), "1.80-2.20")
    assert hopeless["workload"] == "code, useless drafts"
    assert "best" not in hopeless and hopeless["policy / off"] == pytest.approx(0.9)


def test_aims_that_are_missed_name_the_cells_that_lose_most() -> None:
    """With what was best there and what the policy ran."""
    regret = Regret([*round_of(CODE, 0, 10, 20, 20), *round_of(CHAT, 0, 40, 20, 20)])
    found = by_name(regret)
    each, single = found["policy / best setting of each cell"], found["policy / best single setting"]
    assert (each.is_met, each.figure) == (False, pytest.approx(0.75))
    assert each.why.startswith("chat, batch 4: 0.50 of off with ngram k=4 x1; code, batch 1: 1.00")
    assert (single.is_met, single.by) == (False, "ngram k=4")
    assert single.why.startswith("the best setting of each cell gains 1.33; chat, batch 4")
    worst = found["policy / off, worst cell"]
    assert (worst.is_met, worst.figure, worst.by) == (False, pytest.approx(0.5), "chat, batch 4")


def test_aims_that_are_met_need_no_reason() -> None:
    """A mix in which the policy takes the best of both."""
    regret = Regret([*round_of(CODE, 0, 10, 20, 20), *round_of(CHAT, 0, 40, 20, 40)])
    assert {(aim.is_met, aim.why) for aim in mix_aims(regret)[:3]} == {(True, "")}


def test_no_aim_is_met_while_cells_are_missing() -> None:
    """What is missed stays missed; what would be met is undecided, and says how many are missing."""
    met = Regret([*round_of(CODE, 0, 10, 20, 20), *round_of(CHAT, 0, 40, 20, 40)])
    assert {(aim.is_met, aim.why) for aim in mix_aims(met, 2)[:3]} == {(None, "2 cells are missing")}
    assert {row["result"] for row in mix_parts(met, 2)["aims"]} == {"undecided", "not measured"}
    missed = Regret([*round_of(CODE, 0, 10, 20, 20), *round_of(CHAT, 0, 40, 20, 20)])
    assert [aim.is_met for aim in mix_aims(missed, 2)[:3]] == [False, False, False]


def test_nothing_measured_is_neither_met_nor_missed() -> None:
    """No aim is claimed over nothing, texts least of all."""
    assert {(aim.figure, aim.is_met) for aim in mix_aims(Regret([]))} == {(None, None)}


def test_useless_drafts_of_which_one_was_accepted_prove_nothing() -> None:
    """The figure is that of drafts without any acceptance."""
    name = "processor time with useless drafts / off"
    found = by_name(Regret(hopeless_round(0, 9.8, num_accepted=1, num=24)))[name]
    assert (found.figure, found.is_met) == (None, None)


@pytest.mark.parametrize(
    ("speeds", "num", "is_met"),
    [((9.0,), 24, False), ((9.8,), 24, True), ((9.8,), 23, None), ((9.0,), 23, None), ((8.0, 10.6), 24, None)],
)
def test_useless_drafts_are_judged_by_an_interval_and_by_enough_requests(speeds, num, is_met) -> None:
    """The first requests, of which nobody can know it, must not be most of the figure."""
    rounds = [one for i, speed in enumerate(speeds) for one in hopeless_round(i, speed, num=-(-num // len(speeds)))]
    found = by_name(Regret(rounds))["processor time with useless drafts / off"]
    assert found.figure == pytest.approx(sum(10 / speed for speed in speeds) / len(speeds), rel=0.01)
    assert (found.is_met, bool(found.why)) == (is_met, is_met is None)


def test_texts_are_counted_in_pairs() -> None:
    """What parts at near ties is told and does not miss the aim."""
    texts = {
        SETTING_OFF: [request([1, 2]), request([1, 2], ties=[1]), request([5], temperature=1.0)],
        NGRAM: [request([1, 2]), request([1, 3]), request([6], temperature=1.0)],
    }
    greedy, sampled = mix_aims(Regret(traffic(CODE, 0, {SETTING_OFF: 1.0, NGRAM: 1.0}, texts)))[-2:]
    assert (greedy.is_met, greedy.by) == (True, "1 part at near ties")
    assert greedy.aim == "greedy texts unlike off's, beyond near ties, of 2 pairs"
    assert (sampled.is_met, sampled.figure) == (False, 1.0)


def test_a_page_of_a_part_says_so_before_any_figure(tmp_path: Path) -> None:
    """In both files; a whole one says nothing."""
    regret = Regret(round_of(CODE, 0, 10, 20, 20))
    stated = {"time": "now", "num_cores": 2, "cpu": "any", "cells": "1 of 2"}
    write_mix_report(regret, mix_parts(regret, 1), missing_cells(1, 2), stated, tmp_path)
    told = "only 1 of 2 cells were measured, so that no aim is met"
    for name in ("policy.html", "policy.md"):
        before, found, _ = (tmp_path / name).read_text(encoding="utf-8").partition(told)
        assert found and "Heat maps" not in before
    assert missing_cells(2, 2) == []


def test_a_caption_holds_for_one_round_too() -> None:
    """Where what was best can only be told from the round itself."""
    best, _ = mix_plots(Regret(round_of(CODE, 0, 10, 20, 20)))
    assert "in the other rounds, or in this one where it is the only one" in best.labels.text
