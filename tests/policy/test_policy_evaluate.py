"""Replay and tuning: censored histograms, what a smaller or larger k would have given, and advice."""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random
from typing import Any

import pytest
from policy_world import features, lane, only, toy_cost

from outrider.core import DrafterAbility, LaneAbility
from outrider.errors import ConfigError
from outrider.policy.evaluate import Evaluator, Record, advise, speed_of
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.policy.priors import Cell

LANE = lane(cost=toy_cost(0.1))


def record(histogram: list[int] | None, k: int = 3, task: str = "chat", temperature: float = 0.0) -> Record:
    plan = {"drafter": "draft_model", "k": k} if histogram is not None else {"drafter": "off", "k": 0}
    wire = {
        "features": asdict(features(task, temperature)), "plan": plan, "workload": task, "num_running": 1,
        "histogram": histogram, "num_proposed": None, "lane": "one",
    }  # fmt: skip
    return Record.from_wire(wire)


def simulated(alpha: float, k: int, random: Random, **fields: Any) -> Record:
    histogram = [0] * (k + 1)
    for _ in range(40):
        accepted = 0
        while accepted < k and random.random() < alpha:
            accepted += 1
        histogram[accepted] += 1
    return record(histogram, k, **fields)


def test_a_smaller_k_is_read_off_the_histogram() -> None:
    """Rounds with more accepted drafts would have had k of them: exact, whatever others show."""
    one = record([4, 2, 2, 2])
    rate = Evaluator([LANE], [one]).rate(one, Plan("draft_model", 2))
    assert rate == pytest.approx((1 + 0.6 + 0.4) / (0.02 * 1.2))
    assert Evaluator([LANE], [one]).rate(one, PLAN_OFF) == pytest.approx(50)


def test_a_record_belongs_to_the_lane_that_it_ran_on() -> None:
    """Costs and k are that lane's; of a lane that is not known the first one's. What is advised each lane can run."""
    first, dear = lane("first", cost=toy_cost(0.1)), lane("dear", ks=(2,), cost=toy_cost(0.5))
    here, there = replace(record([4, 2, 2, 2]), lane="gone"), replace(record([4, 2, 2, 2]), lane="dear")
    evaluator, plan = Evaluator([first, dear], [here, there]), Plan("draft_model", 2)
    assert evaluator.rate(here, plan) == pytest.approx(2 / (0.02 * 1.2))
    assert evaluator.rate(there, plan) == pytest.approx(2 / (0.02 * 2))
    good = [replace(record([0, 0, 0, 40]), lane=name) for name in ("first", "dear")]
    (advice,) = advise(Evaluator([first, dear], good), good)
    assert advice.max_k["draft_model"] > 2, "the first lane can run more than the second"
    (advice,) = advise(Evaluator([first, dear], good[1:]), good[1:])
    assert advice.max_k == {"draft_model": 2}


def test_without_lanes_the_records_say_what_theirs_could_do() -> None:
    """Lanes that are given stand above that. What did not run there is refused: what it costs would be made up."""
    able = replace(record([4, 2, 2, 2]), ability=lane(cost=toy_cost(0.5)))
    plan = Plan("draft_model", 2)
    assert Evaluator([], [able]).rate(able, plan) == pytest.approx(2 / (0.02 * 2))
    assert Evaluator([LANE], [able]).rate(able, plan) == pytest.approx(2 / (0.02 * 1.2))
    for lanes in ([], [LaneAbility("other", ())]):
        with pytest.raises(ConfigError, match=r"record 2 ran draft_model on lane one, which lane .* does not have"):
            Evaluator(lanes, [record(None), record([4, 2, 2, 2])])


def test_drawn_drafts_are_learnt_as_such() -> None:
    """What is believed of them before data does not fall with temperature."""
    drawn = LaneAbility("one", (DrafterAbility("draft_model", (3,), is_sampled=True),), cost=toy_cost(0.1))
    hot = record(None, temperature=1.2)
    rates = [Evaluator([one], []).rate(hot, Plan("draft_model", 3)) for one in (drawn, LANE)]
    assert rates[0] > 1.2 * rates[1]


def test_a_tree_costs_what_decisions_charge_for_it() -> None:
    """Its depth is bounded: of more nodes it gets broader."""
    able = LaneAbility("one", (DrafterAbility("eagle3", tuple(range(1, 17)), depth=6),), cost=toy_cost(0.5))
    one = record(None)
    evaluator = Evaluator([able], [])
    cell = Cell("eagle3", False, 0, "chat", 0)
    tokens = evaluator.learner.acceptance.curve(cell).tokens[12]
    rate = evaluator.rate(one, Plan("eagle3", 12), is_foreseen=True)
    assert tokens / rate == pytest.approx(0.02 * (1 + 6 * 0.5), rel=0.05)


def test_a_larger_k_is_estimated_from_all_records() -> None:
    """Censored depths come from the curve: near what records with that k would have had."""
    random = Random(1)
    records = [simulated(0.8, 3, random) for _ in range(40)]
    rate = Evaluator([LANE], records).rate(records[0], Plan("draft_model", 6))
    tokens = rate * 0.02 * 1.6
    assert 3.2 < tokens < 4.6  # 1 + .8 + ... + .8 ** 6 is 3.95


def test_replay_decides_anew_or_takes_one_plan() -> None:
    """Both keep the recorded rate beside the new one."""
    records = [simulated(0.7, 3, Random(i)) for i in range(10)]
    evaluator = Evaluator([LANE], records)
    policies = only(drafters={"draft_model": {"max_k": 2}}, exploration={"share": 0, "control": 0})
    anew = list(evaluator.replay(records, policies))
    assert {one.plan for one in anew} == {Plan("draft_model", 2)}
    fixed = list(evaluator.replay(records, policies, PLAN_OFF))
    assert all(one.new_rate == one.plain_rate for one in fixed)
    assert [one.recorded_rate for one in fixed] == [one.recorded_rate for one in anew]


def test_advice_allows_what_pays_and_says_what_does_not() -> None:
    """A good drafter gets the k that pays, a useless one is not allowed, and hot requests are left out."""
    random = Random(1)
    good = [simulated(0.8, 8, random, task="code") for _ in range(20)]
    bad = [simulated(0.02, 8, random, task="maths") for _ in range(20)]
    mixed = [
        simulated(0.8 if i % 2 else 0.0, 3, random, task="rag", temperature=0.0 if i % 2 else 1.2) for i in range(20)
    ]
    records = [*good, *bad, *mixed]
    found = {advice.workload: advice for advice in advise(Evaluator([LANE], records), records)}
    assert 4 <= found["code"].max_k["draft_model"] <= 7
    assert found["maths"].max_k == {} and found["maths"].gain > 1.5
    assert found["rag"].max_temperature == 0.0
    assert any("better drafter" in hint for hint in found["maths"].hints)
    assert any("k 8 is too large" in hint for hint in found["code"].hints)


def test_heat_and_load_are_told_of_where_most_requests_have_them() -> None:
    """Each rule of thumb by itself."""
    random = Random(1)
    cool = [simulated(0.9, 2, random) for _ in range(9)]
    for change, hint in (
        ({"features": features(temperature=1.0)}, "most requests are hot"),
        ({"num_running": 12}, "usually 12 requests run at once"),
    ):
        for num, is_told in ((4, False), (5, True)):
            records = [*(replace(one, **change) for one in cool[:num]), *cool[num:]]
            (advice,) = advise(Evaluator([LANE], records), records)
            assert any(one.startswith(hint) for one in advice.hints) is is_told


def test_the_gain_is_the_ratio_of_speeds() -> None:
    """Tokens of all answers over their time, so that a long answer counts for what it takes."""
    random = Random(1)
    slow = [replace(simulated(0.0, 3, random), num_tokens=10) for _ in range(10)]
    long = [replace(simulated(0.9, 3, random), num_tokens=990) for _ in range(10)]
    records = [*slow, *long]
    evaluator = Evaluator([LANE], records)
    advice = advise(evaluator, records)[0]
    taken = [max((PLAN_OFF, *(Plan("draft_model", k) for k in range(1, advice.max_k["draft_model"] + 1))),
                 key=lambda plan: evaluator.rate(one, plan, is_foreseen=True)) for one in records]  # fmt: skip
    old_s = sum(one.num_tokens / evaluator.rate(one, one.plan) for one in records)
    new_s = sum(one.num_tokens / evaluator.rate(one, plan) for one, plan in zip(records, taken, strict=True))
    assert advice.gain == pytest.approx(old_s / new_s)
    assert 0 < advice.margin < 0.5
    speed = speed_of(records, [evaluator.rate(one, one.plan) for one in records])
    assert speed == pytest.approx(10_000 / old_s)


@pytest.mark.parametrize("change", [{"plan": {"drafter": "zzz", "k": 1}}, {"histogram": "x"}, {"features": {}}])
def test_odd_records_are_refused(change: dict[str, Any]) -> None:
    """With one line."""
    wire = {
        "features": asdict(features()), "plan": {"drafter": "off", "k": 0}, "workload": "w", "num_running": 1,
        "histogram": None,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="not a recorded request"):
        Record.from_wire(wire | change)


def test_unknown_load_is_a_full_lane() -> None:
    """As when it was decided."""
    one = record([4, 2, 2, 2])
    busy = replace(one, num_running=None)
    small = LaneAbility("one", LANE.drafters, cost=toy_cost(0.1, knee=8))
    evaluator = Evaluator([small], [one])
    assert evaluator.rate(busy, one.plan) < evaluator.rate(one, one.plan)
