"""Round times: from tables and closed forms, corrected by observation, and never idle by ignorance."""

from __future__ import annotations

import json

import pytest
from policy_world import EMBEDDED, decide, features, lane, only, toy_cost, view

from outrider.core import DrafterAbility, LaneAbility, LaneLoad, LaneView
from outrider.cost import VERSION, ClosedCost, CostTable
from outrider.policy.rounds import Occupancy, Rounds, occupancy

TABLE = CostTable.model_validate(
    {
        "version": VERSION,
        "key": {"cpu": "x"},
        "num_sequences": (1, 4),
        "widths": (1, 17),
        "contexts": (100, 1100),
        "round_s": [[[0.010, 0.020], [0.026, 0.036]], [[0.020, 0.060], [0.084, 0.124]]],
        "drafters": {
            "ngram": {"first_s": 0.001, "step_s": 0.0, "round_s": 1.0},
            "draft_model": {"first_s": 0.002, "step_s": 0.002, "round_s": 1.0},
            "eagle2": {"first_s": 0.003, "step_s": 0.002, "round_s": 1.0},
        },
        "bytes_per_token": 1,
        "weight_bytes": 1,
        "read_s": 1.0,
    }
)


@pytest.mark.parametrize(
    ("num", "limit", "expected"),
    [
        (-1, 0, Occupancy(16, 0, False)),
        (3, 16, Occupancy(4, 0, True)),
        (3, 0, Occupancy(4, 0, True)),
        (21, 16, Occupancy(16, 6, True)),
        (6, 4, Occupancy(4, 3, True)),
    ],
)
def test_unknown_load_counts_as_full(num: int, limit: int, expected: Occupancy) -> None:
    """This request counts; what exceeds the running limit waits."""
    assert occupancy(EMBEDDED, num, limit) == expected


@pytest.mark.parametrize(("read_at_s", "is_known"), [(90.0, True), (89.9, False)])
def test_a_stale_load_is_unknown(read_at_s: float, is_known: bool) -> None:
    """From the workload's limit on, 10 s unless it says otherwise."""
    found = decide(only(), features(), LaneView(EMBEDDED, LaneLoad(3, 0, 16, read_at_s)))
    assert found.option.seen == Occupancy(4 if is_known else 16, 0, is_known)


@pytest.mark.parametrize(("read_at_s", "is_known"), [(98.0, True), (97.9, False)])
def test_a_workload_says_when_a_load_is_stale(read_at_s: float, is_known: bool) -> None:
    """For all lanes of its requests."""
    found = decide(only(load_max_age_s=2.0), features(), LaneView(EMBEDDED, LaneLoad(3, 0, 16, read_at_s)))
    assert found.option.seen.is_known is is_known


def test_a_long_prompt_costs_what_was_measured_for_it() -> None:
    """And is of another bucket of lengths, in which acceptance is learnt apart."""
    ability = LaneAbility.embedded("one", ("ngram",), TABLE)
    tokens = (100, 1000, 5000)
    found = [decide(only(), features(num_prompt_tokens=num), view(ability), off=True) for num in tokens]
    assert found[0].option.rate > found[1].option.rate > found[2].option.rate
    assert [one.cell.length for one in found] == [0, 1, 2]


@pytest.mark.parametrize(("num", "batch"), [(1, 1), (4, 4), (5, 6), (9, 12), (48, 48), (130, 192), (1000, 1000)])
def test_batches_are_rounded_up(num: int, batch: int) -> None:
    """Small ones are told apart, large ones coarsely, and never taken for smaller."""
    assert Occupancy(num, 0, True).batch == batch


def test_tables_give_rounds_and_proposals() -> None:
    """Forward by rows, one proposal per sequence; a model's grows with k, a look-up's does not, a head's up to the
    depth of its tree."""
    ability = LaneAbility.embedded("one", ("ngram", "draft_model", "eagle2"), TABLE)
    rounds = Rounds()
    assert rounds.forwards(ability, 1, 100)[0] == pytest.approx(0.010)
    assert rounds.forwards(ability, 1, 100)[4] == pytest.approx(0.014)
    assert rounds.forwards(ability, 4, 1100)[0] == pytest.approx(0.060)
    assert rounds.draft_s(ability, "ngram", 2) == pytest.approx((0.002, 0.0))
    assert rounds.draft_s(ability, "draft_model", 2) == pytest.approx((0.004, 0.004))
    tree, chain = (rounds.round_s(ability, "eagle2", (1, 100), 1.0, depth) for depth in (6, 16))
    assert [tree[k] for k in (4, 12)] == pytest.approx([0.014 + 0.003 + 3 * 0.002, 0.022 + 0.003 + 5 * 0.002])
    assert [chain[k] for k in (4, 12)] == pytest.approx([0.014 + 0.003 + 3 * 0.002, 0.022 + 0.003 + 11 * 0.002])
    assert rounds.round_s(ability, "draft_model", (1, 100), 1.0)[4] == pytest.approx(0.014 + 0.008)
    assert rounds.round_s(ability, "ngram", (1, 100), 0.5)[4] == pytest.approx(0.012 + 0.001)


def test_the_closed_form_has_a_knee() -> None:
    """Rows are free up to it and linear beyond; draft steps cost their share of a plain round."""
    ability = lane(cost=toy_cost(0.1, knee=8))
    seconds = Rounds().round_s(ability, "draft_model", (2, 100), 1.0)
    assert seconds[0] == pytest.approx(0.02)
    assert seconds[3] == pytest.approx(0.02 * (1 + 0.3))
    assert seconds[7] == pytest.approx(0.02 * (2 + 0.7))
    assert ClosedCost(1.0, 6, 0.06, 0.65).at(1, 6, 0) == pytest.approx(1.3)


def test_what_is_set_at_launch_is_paid_whatever_k_is() -> None:
    """A tree's width and depth, in plain rounds too; and so no k below the largest is worth taking."""
    tree = DrafterAbility("eagle3", (1, 2, 3), min_num_rows=8, min_num_steps=3)
    ability, rounds = LaneAbility("one", (tree,), cost=toy_cost(0.1, knee=4)), Rounds()
    seconds = rounds.round_s(ability, "eagle3", (2, 100), 1.0)
    assert rounds.forwards(ability, 2, 100)[0] == rounds.forwards(ability, 2, 100)[7] == pytest.approx(0.02 * 4)
    assert seconds[:4] == pytest.approx([0.02 * (4 + 3 * 0.1)] * 4) and seconds[5] == pytest.approx(0.02 * (4 + 0.5))
    assert rounds.plain_s(ability, 2, 100) == seconds[0]
    policies = only(drafters={"eagle3": {"max_k": 16}})
    decision = decide(policies, features("code"), view(ability))
    assert decision.plan.k == 3 and decision.plain_round_s() == pytest.approx(0.02 * (2 + 0.3))
    assert decision.round_s(1.0) == pytest.approx(0.02 * (2 + 0.3))


def test_a_plain_lane_is_better_than_one_that_verifies_a_tree_without_drafts() -> None:
    """Off on a lane whose width is set costs the whole tree."""
    tree = DrafterAbility("eagle3", (1, 2, 3), min_num_rows=32, min_num_steps=3)
    lanes = [LaneAbility("tree", (tree,), cost=toy_cost(0.1, 8)), LaneAbility("plain", (), cost=toy_cost(0.1, 8))]
    decision = decide(only(drafters={"eagle3": {}}), features("code"), *map(view, lanes))
    assert (decision.lane, decision.plan.k) == ("plain", 0)


def test_observations_correct_the_lane_and_the_arm() -> None:
    """A machine that became slow slows all arms; an arm that alone is slow is told apart from it."""
    rounds = Rounds()
    for _ in range(60):
        rounds.observe("one", "off", (0.02, 0.04))
        rounds.observe("one", "ngram", (0.02, 0.08))
    assert rounds.correction("one", "off") == pytest.approx(2.0, rel=0.1)
    assert rounds.correction("one", "ngram") == pytest.approx(4.0, rel=0.1)
    assert rounds.correction("one", "suffix") == pytest.approx(2.0, rel=0.1)
    assert rounds.correction("two", "ngram") == 1.0
    again = Rounds.from_state(json.loads(json.dumps(rounds.to_state())))
    assert again.correction("one", "ngram") == rounds.correction("one", "ngram")


def test_one_outlier_says_little() -> None:
    """A request that was stopped for a minute does not turn the lane's speed over."""
    rounds = Rounds()
    rounds.observe("one", "off", (0.02, 60.0))
    assert rounds.correction("one", "off") < 1.3
    for _ in range(8):
        rounds.observe("one", "off", (0.02, 0.02))
    assert rounds.correction("one", "off") < 1.05


def test_batches_are_corrected_apart() -> None:
    """What is dear in large batches is not in small ones; a size that nothing ran at is like the nearest."""
    rounds, ability = Rounds(), LaneAbility.embedded("one")
    for _ in range(60):
        rounds.observe("one", "suffix", (0.02, 0.02), 1)
        rounds.observe("one", "suffix", (0.02, 0.04), 12)
    assert rounds.correction("one", "suffix", 1) == pytest.approx(1.0, rel=0.1)
    assert rounds.correction("one", "suffix", 8) == pytest.approx(2.0, rel=0.1)
    assert rounds.correction("one", "suffix", 48) == rounds.correction("one", "suffix", 12)
    assert rounds.factors(ability, 1).now[2] > 1.5 * rounds.factors(ability, 12).now[2]
    again = Rounds.from_state(json.loads(json.dumps(rounds.to_state())))
    assert again.correction("one", "suffix", 12) == rounds.correction("one", "suffix", 12)


def test_factors_follow_observations() -> None:
    """Speeds are multiplied by what corrections say now, plain decoding first."""
    rounds, ability = Rounds(), lane()
    assert rounds.factors(ability, 1).now == (1.0, 1.0)
    rounds.observe("one", "draft_model", (0.02, 0.04))
    assert rounds.factors(ability, 1).now[1] < rounds.factors(ability, 1).now[0] < 1.0


@pytest.mark.parametrize("drift", [0.8, 1.25])
def test_a_machine_that_changes_its_speed_changes_no_comparison(drift: float) -> None:
    """While all requests are plain: what was seen of a drafter before is as good or as bad beside them as it was."""
    rounds = Rounds()
    for _ in range(8):
        rounds.observe("one", "off", (0.02, 0.022))
        rounds.observe("one", "ngram", (0.02, 0.024))

    def worth() -> float:
        return rounds.correction("one", "ngram") / rounds.correction("one", "off")

    before = worth()
    for _ in range(40):
        rounds.observe("one", "off", (0.02, 0.022 * drift))
    assert rounds.correction("one", "off") == pytest.approx(1.1 * drift, rel=0.03)
    assert worth() == pytest.approx(before, rel=0.03)
