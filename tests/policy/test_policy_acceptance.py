"""Acceptance: what is believed before data, how counts change it, and what they say nothing about."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core import MAX_K, SpecStats
from outrider.policy.acceptance import Acceptance, expected_tokens
from outrider.policy.priors import Cell, prior_hazards

CELL = Cell("draft_model", True, 0, "chat", 0)


def stats(histogram: list[int], num_proposed: int | None = None) -> SpecStats:
    return SpecStats(sum(histogram), sum(i * n for i, n in enumerate(histogram)), tuple(histogram), num_proposed)


def simulated(alpha: float, k: int, rounds: int, random: Random) -> SpecStats:
    histogram = [0] * (k + 1)
    for _ in range(rounds):
        accepted = 0
        while accepted < k and random.random() < alpha:
            accepted += 1
        histogram[accepted] += 1
    return stats(histogram)


def test_expected_tokens_are_sums_of_survivals() -> None:
    """Of equal hazards the geometric sum; deeper depths have the last hazard."""
    assert expected_tokens([0.5])[:4] == (1.0, 1.5, 1.75, 1.875)
    assert expected_tokens([0.9, 0.5])[3] == pytest.approx(1 + 0.9 + 0.45 + 0.225)
    assert len(expected_tokens([0.5])) == MAX_K + 1


def test_what_is_seen_of_a_head_is_held_against_its_card() -> None:
    """It moves belief no further than what was seen."""
    eagle = Cell("eagle2", True, 4, "summarise", 0)
    chain = prior_hazards(eagle, accuracy=(0.5, 0.4))
    found, random = Acceptance(), Random(1)
    found.accuracy["eagle2"] = (0.5, 0.4)
    assert found.curve(eagle).hazards == chain
    for _ in range(40):
        found.update(eagle, simulated(chain[0], 1, 40, random), 1)
    assert found.curve(eagle).hazards[0] == pytest.approx(chain[0], abs=0.05)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_the_posterior_comes_near_the_truth_from_censored_counts(alpha: float) -> None:
    """Rounds with k 2 tell two depths, and deeper ones follow them: acceptance does not seem to end at k."""
    found, random = Acceptance(), Random(1)
    for _ in range(40):
        found.update(CELL, simulated(alpha, 2, 40, random), 2)
    hazards = found.curve(CELL).hazards
    assert hazards[0] == pytest.approx(alpha, abs=0.05)
    assert hazards[4] == pytest.approx(alpha, abs=0.1)


def test_a_round_says_nothing_of_what_lies_behind_its_rejection() -> None:
    """Counted by hand: trials are rounds that reached a depth; a full acceptance is no failure of the next depth."""
    one, more = Acceptance(), Acceptance()
    one.update(CELL, stats([0, 0, 10]), 2)
    more.update(CELL, stats([0, 0, 10, 0]), 3)
    assert one.curve(CELL).hazards[2] > more.curve(CELL).hazards[2]


@pytest.mark.parametrize("drafter", ["draft_model", "ngram"])
def test_drafts_that_were_never_proposed_are_no_rejections(drafter: str) -> None:
    """Of k 5 every round verified two, as counts of proposals tell; for look-ups a third of the rounds had none."""
    found, random, cell = Acceptance(), Random(1), CELL._replace(drafter=drafter)
    for _ in range(60):
        rounds = simulated(0.9, 2, 40, random).histogram
        num_empty = 20 if drafter == "ngram" else 0
        found.update(cell, stats([rounds[0] + num_empty, *rounds[1:], 0, 0, 0], num_proposed=80), 5)
    first, *later = found.curve(cell).hazards
    assert first == pytest.approx(0.6 if drafter == "ngram" else 0.9, abs=0.05)
    assert later[0] == pytest.approx(0.9, abs=0.06)
    assert min(later) > 0.65


def test_other_tasks_follow_a_little_and_tenants_have_their_own() -> None:
    """What one task shows moves the others of its drafter; a tenant's counts move that tenant most."""
    found, random = Acceptance(), Random(1)
    other = CELL._replace(task="code")
    tenant = CELL._replace(tenant="t")
    before = found.curve(CELL).hazards[0], found.curve(other).hazards[0]
    for _ in range(3):
        found.update(tenant, simulated(0.0, 3, 40, random), 3)
    assert found.curve(other).hazards[0] < before[1]
    assert found.curve(tenant).hazards[0] < found.curve(CELL).hazards[0] < before[0]
    for drafter in ("layer_skip", "hybrid"):
        assert found.curve(CELL._replace(drafter=drafter)).hazards == prior_hazards(CELL._replace(drafter=drafter))


def test_temperatures_kinds_of_proposals_and_lengths_learn_apart() -> None:
    """Of another temperature, or drawn and not drawn, nothing is said; of another length what all tasks share."""
    found, random = Acceptance(), Random(1)
    for _ in range(20):
        found.update(CELL, simulated(0.0, 3, 40, random), 3)
    for other in (CELL._replace(temperature=3), CELL._replace(is_sampled=False)):
        assert found.curve(other).hazards == prior_hazards(other)
    long = CELL._replace(length=2)
    assert found.curve(CELL).hazards[0] < 0.5 * found.curve(long).hazards[0] < prior_hazards(long)[0]


def test_old_counts_fade() -> None:
    """After a change of the truth the new one is believed within some fifty requests."""
    found, random = Acceptance(), Random(1)
    for alpha in (0.9, 0.2):
        for _ in range(120):
            found.update(CELL, simulated(alpha, 3, 40, random), 3)
    assert found.curve(CELL).hazards[0] == pytest.approx(0.2, abs=0.1)


def test_what_a_look_up_really_proposes_is_learnt() -> None:
    """The share of the drafts asked for, which its rounds cost; of other drafters it is one."""
    found, cell = Acceptance(), Cell("ngram", False, 0, "chat", 0)
    before = found.curve(cell).fill
    for _ in range(20):
        found.update(cell, stats([90, 5, 5], num_proposed=20), 2)
    assert found.curve(cell).fill < 0.15 < before
    assert found.curve(CELL).fill == 1.0


def test_what_one_task_proposes_says_nothing_of_another() -> None:
    """Where text repeats itself a look-up finds drafts in most rounds, elsewhere in few."""
    found, cell = Acceptance(), Cell("ngram", False, 0, "quote", 0)
    before = found.curve(cell).fill
    for _ in range(20):
        found.update(cell._replace(task="chat"), stats([90, 5, 5], num_proposed=20), 2)
    assert found.curve(cell).fill == before


def test_what_all_tasks_share_reaches_the_others_soon_at_first() -> None:
    """The first updates of a task are taken in by another at once, later ones seldom: their curves hardly move."""
    found, seen, other = Acceptance(), [], ("draft_model", *CELL._replace(task="code")[2:])
    for _ in range(3000):
        found.update(CELL, stats([1, 1]), 1)
        seen.append(found.stamp(other))
    assert len(set(seen[:10])) > 5
    assert len(set(seen)) < 100


@pytest.mark.parametrize("k", [4, 8])
def test_a_tree_is_worth_the_sum_of_its_drafts(k: int) -> None:
    """Learnt from trees of one size, it holds for smaller ones, and near enough for larger ones, which were never
    seen; by accepted lengths alone the first draft of a broad tree would be taken for its whole first depth."""
    cell = CELL._replace(drafter="eagle2")
    truth = (0.5, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.035)
    found, random = Acceptance(), Random(1)
    for _ in range(60):
        by_draft, histogram = [0] * k, [0] * (k + 1)
        for _ in range(40):
            accepted = [place for place in range(k) if random.random() < truth[place]]
            histogram[len(accepted)] += 1
            for place in accepted:
                by_draft[place] += 1
        found.update(cell, replace(stats(histogram, 40 * k), by_draft=tuple(by_draft)), k)
    tokens = found.curve(cell).tokens
    for size in (1, 2, 4, 8):
        assert tokens[size] == pytest.approx(1 + sum(truth[:size]), rel=0.05)


@given(st.lists(st.lists(st.integers(0, 30), min_size=2, max_size=8).filter(any), max_size=20))
@settings(max_examples=60, deadline=None)
def test_any_counts_give_probabilities_and_survive_json(histograms: list[list[int]]) -> None:
    """Hazards stay between 0 and 1, and restored state gives the same curve."""
    found = Acceptance()
    for histogram in histograms:
        found.update(CELL, stats(histogram), len(histogram) - 1)
    curve = found.curve(CELL)
    assert all(0 < hazard < 1 for hazard in curve.hazards)
    again = Acceptance.from_state(json.loads(json.dumps(found.to_state())))
    assert again.curve(CELL).hazards == curve.hazards


def test_weights_are_trials_and_belief_once() -> None:
    """A tenant's trials are its task's, too, and count once."""
    found = Acceptance()
    found.update(CELL._replace(tenant="t"), stats([50, 50]), 1)
    for cell in (CELL, CELL._replace(tenant="t")):
        assert found.curve(cell).weights == (130, 30, 30, 30, 30)


def test_memory_of_tenants_is_bounded_and_the_newest_are_remembered() -> None:
    """However many there were; a forgotten tenant's stamp differs from every one before it."""
    found = Acceptance()
    cells = [CELL._replace(tenant=f"t{i}") for i in range(25_000)]
    found.update(cells[0], stats([1, 9]), 1)
    old = found.stamp(cells[0][2:])
    for cell in cells[1:]:
        found.update(cell, stats([1, 9]), 1)
    maps = [value for value in vars(found).values() if isinstance(value, dict)]
    assert [len(one) for one in maps] == [20_000, 0, 0, 20_000]
    assert found.curve(cells[0]).hazards == found.curve(CELL._replace(tenant="new")).hazards
    assert found.curve(cells[-1]).hazards != found.curve(cells[0]).hazards
    assert found.stamp(cells[0][2:]) != old


def test_stamps_change_often_at_first_and_seldom_later() -> None:
    """The first update is taken in at once; of a thousand not many are."""
    found, seen = Acceptance(), []
    for _ in range(1000):
        found.update(CELL, stats([1, 1]), 1)
        seen.append(found.stamp(CELL[2:]))
    assert seen[0] > Acceptance().stamp(CELL[2:])
    assert 10 < len(set(seen)) < 100


def test_samples_scatter_around_the_curve() -> None:
    """For Thompson sampling: draws differ, and their mean is the curve's."""
    curve, random = Acceptance().curve(CELL), Random(1)
    draws = [curve.drawn(3, random) for _ in range(400)]
    assert min(draws) < curve.tokens[3] < max(draws)
    assert sum(draws) / 400 == pytest.approx(curve.tokens[3], rel=0.05)
    assert curve.drawn(0, random) == 1.0
