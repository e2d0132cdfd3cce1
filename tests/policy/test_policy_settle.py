"""Settling: stable under noise, quick to shed load, and what tries and the control arm may cost."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from policy_world import EMBEDDED, decide, features, lane, only, toy_cost, view

from outrider.core import DrafterAbility, LaneAbility, SpecStats
from outrider.policy.decide import PolicySet
from outrider.policy.learning import Feedback, Gate, Learner
from outrider.policy.simulate import Arrival, constant_truth, serve

QUIET = {"share": 0, "control": 0}


def changes(plans: list) -> int:
    return sum(a != b for a, b in pairwise(plans))


@pytest.mark.parametrize("task", ["code", "quote", "chat", "edit"])
@pytest.mark.parametrize("loads", [(0, 1), (1, 2), (2, 3), (3, 8), (6, 15)])
def test_load_around_a_threshold_changes_the_plan_a_few_times(task: str, loads: tuple[int, int]) -> None:
    """Alternating at every request, over two hundred requests."""
    policies = only(exploration=QUIET)
    plans = [decide(policies, features(task), view(EMBEDDED, loads[i % 2])).plan for i in range(200)]
    assert changes(plans) <= 3


@pytest.mark.parametrize("usages", [(0.89, 0.91), (0.96, 0.98), (0.89, 0.98)])
def test_memory_around_a_threshold_changes_the_plan_a_few_times(usages: tuple[float, float]) -> None:
    """What a cache that fills up sheds at once comes back after a streak."""
    policies, plans = only(exploration=QUIET), []
    for i in range(200):
        plans.append(decide(policies, features("quote"), view(EMBEDDED, 1, token_usage=usages[i % 2])).plan)
    assert changes(plans) <= 3


def test_load_around_a_band_changes_the_plan_a_few_times() -> None:
    """A workload's own bound of k sheds at once, too."""
    bands = [{"max": 3, "max_k": 8}, {"max": 64, "max_k": 4}]
    policies = only(exploration=QUIET, load=bands, drafters={"ngram": {"max_k": 8}})
    plans = [decide(policies, features("quote"), view(EMBEDDED, 3 + i % 2)).plan for i in range(200)]
    assert changes(plans) <= 3


@pytest.mark.parametrize("other", [{"priority": -1}, {"tenant": "t"}, {"num_prompt_tokens": 1000}])
def test_what_bounds_one_request_leaves_the_plan_of_others(other: dict) -> None:
    """A share of the drafts by priority, a store that no tenant may use, and a drafter for short prompts, in every
    second request."""
    shared = DrafterAbility("ngram", (1, 2, 4, 8), is_shared=True, max_context=400)
    able = view(LaneAbility("one", (shared,), cost=EMBEDDED.cost), 1)
    policies = only(exploration=QUIET, shares={"low": 0.5}, drafters={"ngram": {"max_k": 8}})
    first = decide(policies, features("quote"), able).plan
    for _ in range(20):
        bounded = decide(policies, features("quote", **other), able).plan
        assert bounded.k < first.k
        assert decide(policies, features("quote"), able).plan == first


def test_lanes_with_one_k_each_keep_their_plans_while_one_is_away() -> None:
    """As SGLang's are without our plugin: what another lane of the drafter can do is not that plan."""
    policies = only(exploration=QUIET, drafters={"ngram": {"max_k": 8}})
    long, short = (view(LaneAbility(f"k{k}", (DrafterAbility("ngram", (k,)),), cost=EMBEDDED.cost)) for k in (8, 2))
    before = decide(policies, features("quote"), long, short).plan
    for _ in range(20):
        assert decide(policies, features("quote"), short).plan.k in (0, 2)
    assert decide(policies, features("quote"), long, short).plan == before


def test_a_lane_that_was_away_is_taken_again_at_once() -> None:
    """While it was, others had its requests; what would have been taken on it is not forgotten for that."""
    policies = only(exploration=QUIET)
    able, plain = view(EMBEDDED), view(LaneAbility("plain", (), cost=EMBEDDED.cost))
    before = decide(policies, features("quote"), able, plain).plan
    assert before.k > 0
    assert all(decide(policies, features("quote"), plain).plan.is_off for _ in range(20))
    assert decide(policies, features("quote"), able, plain).plan == before


def test_acceptance_around_a_pivot_changes_the_plan_a_few_times() -> None:
    """True acceptance swings around the point where speculation begins to pay, with learning at every request."""
    policies = only(drafters={"draft_model": {"max_k": 8}}, exploration=QUIET)
    ability, random, plans = lane(cost=toy_cost(0.3)), Random(1), []
    for i in range(300):
        decision = decide(policies, features("chat"), view(ability))
        truth = constant_truth(0.25 if i % 2 else 0.4)
        policies.learn(decision, serve(decision, Arrival(0, decision.features, 100), truth, random).feedback)
        plans.append(decision.plan)
    assert changes(plans) <= 6


def test_a_lasting_change_of_load_is_followed() -> None:
    """Down at once, and up again at once where loads are far apart: each has its own plan that was taken last."""
    policies = only(exploration=QUIET)
    loads = [0] * 20 + [15] * 20 + [0] * 20
    plans = [decide(policies, features("code"), view(EMBEDDED, num)).plan.k for num in loads]
    assert plans == [5] * 20 + [0] * 20 + [5] * 20


@pytest.mark.parametrize("task", ["code", "quote"])
def test_loads_far_apart_have_plans_of_their_own(task: str) -> None:
    """Each is as stable as if it were alone; a load between them stays with the one that was asked last."""
    policies = only(exploration=QUIET)
    found = {0: [], 15: [], 3: []}
    for num in (0, 15) * 60 + (0, 3) * 60:
        found[num].append(decide(policies, features(task), view(EMBEDDED, num)).plan)
    assert all(changes(plans) <= 1 for plans in found.values())


def test_the_control_arm_is_the_share_that_was_asked_for() -> None:
    """As a share of time: with drafts that triple the speed a third of the share of requests; the rule says so."""
    policies = only(exploration={"share": 0, "control": 0.02})
    rules = [decide(policies, features("quote")).rule for _ in range(200)]
    assert rules.count("control") in (1, 2)
    assert rules.index("control") > 100


def test_the_control_arm_is_earned_by_requests_that_gain() -> None:
    """Among many for which plain is best its share of the others' time stays; thousands of those leave no debt."""
    policies = only(temperature=[{"max": 0.6}], exploration={"share": 0, "control": 0.02})
    rules = []
    for _ in range(3000):
        decide(policies, features("chat", 1.0))
    plain_s = taken_s = 0.0
    for i in range(8000):
        if i % 4:
            assert decide(policies, features("chat", 1.0)).rule == "no-drafter"
            continue
        decision = decide(policies, features("quote"))
        rules.append(decision.rule)
        taken_s += 1 / decision.option.rate
        plain_s += (decision.rule == "control") / decision.option.rate
    assert plain_s / taken_s == pytest.approx(0.02, rel=0.15)
    controls = [i for i, rule in enumerate(rules) if rule == "control"]
    assert min(b - a for a, b in pairwise(controls)) > 50


def two_drafters() -> LaneAbility:
    drafters = (DrafterAbility("ngram", (3,)), DrafterAbility("draft_model", (3,)))
    return LaneAbility("one", drafters, cost=toy_cost(0.05))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1])
def test_tries_stay_within_their_share_and_find_the_better_drafter(share: float) -> None:
    """A drafter that is believed to be bad and is good is found exactly when tries are allowed."""
    drafters = {"ngram": {"max_k": 3, "prior": 0.9}, "draft_model": {"max_k": 3, "prior": 0.1}}
    policies = only(drafters=drafters, exploration={"share": share, "control": 0})
    ability, random, rules, plans = two_drafters(), Random(1), [], []
    for _ in range(400):
        decision = decide(policies, features("quote"), view(ability))
        hazards = {"ngram": 0.3, "draft_model": 0.9}
        truth = constant_truth(hazards.get(decision.plan.drafter, 0.0))
        served = serve(decision, Arrival(0, decision.features, 100), truth, random)
        policies.learn(decision, served.feedback)
        rules.append(decision.rule)
        plans.append(decision.plan.drafter)
    assert rules.count("explore") <= share * 400
    assert (plans[-20:].count("draft_model") > 15) is (share > 0)


def test_what_is_tried_is_drawn_by_what_is_believed() -> None:
    """Of two drafters that may be as good the one is tried or the other, and not always that of the better mean."""
    drafters = {"ngram": {"prior": 0.9}, "draft_model": {"prior": 0.52}, "eagle2": {"prior": 0.5}}
    ability, tried = (
        LaneAbility("one", tuple(DrafterAbility(name, (3,)) for name in drafters), cost=toy_cost()),
        set(),
    )
    for seed in range(20):
        policies = only(drafters=drafters, exploration={"share": 0.2, "control": 0})
        policies.learner.random = Random(seed)
        plans = [decide(policies, features("quote"), view(ability)) for _ in range(6)]
        tried |= {one.plan.drafter for one in plans if one.rule == "explore"}
    assert tried == {"draft_model", "eagle2"}


@pytest.mark.parametrize(("taken_s", "tries"), [(102.0, True), (104.0, False)])
def test_nothing_is_tried_where_tries_have_cost_enough(taken_s: float, tries: bool) -> None:
    """Of the slow-down that is allowed they may use up a part; what is best is speculated all the same."""
    policies = only(drafters={"draft_model": {"max_k": 16}}, exploration={"share": 0.2, "control": 0})
    policies.learner.ledger("only").spent(100.0, taken_s)
    found = [decide(policies, features("code"), view(lane(cost=toy_cost(0.05)))) for _ in range(40)]
    assert ("explore" in {one.rule for one in found}) is tries and all(one.plan.k for one in found)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_the_next_larger_k_is_tried_where_no_other_drafter_is_due(share: float) -> None:
    """What drafts beyond those that run are worth is only guessed. Never without tries, nor beyond the bound."""
    policies = only(drafters={"draft_model": {"max_k": 16}}, exploration={"share": share, "control": 0})
    ability = lane(cost=toy_cost(0.05))
    decisions = [decide(policies, features("code"), view(ability)) for _ in range(60)]
    best = decisions[0].plan.k
    tried = [decision.plan.k for decision in decisions if decision.rule == "explore"]
    assert set(tried) == ({best + 1} if share else set()) and len(tried) <= 60 * share
    bounded = only(drafters={"draft_model": {"max_k": best}}, exploration={"share": share, "control": 0})
    assert all(decide(bounded, features("code"), view(ability)).rule == "best-rate" for _ in range(60))


def test_a_larger_k_that_is_not_taken_is_tried_ever_less_often() -> None:
    """Its drafts are accepted as expected, and so it stays the second best: tries of it wait longer each time."""
    policies = only(drafters={"draft_model": {"max_k": 16, "prior": 0.7}}, exploration={"share": 0.1, "control": 0})
    ability, random, tried = lane(cost=toy_cost(0.05)), Random(1), []
    for i in range(3000):
        decision = decide(policies, features("code"), view(ability))
        served = serve(decision, Arrival(0, decision.features, 100), constant_truth(0.7), random)
        policies.learn(decision, served.feedback)
        if decision.rule == "explore":
            tried.append((i, decision.plan.k))
    assert 3 <= len(tried) <= 30
    by_k = [[i for i, k in tried if k == one] for one in {k for _, k in tried}]
    gaps = [[b - a for a, b in pairwise(found)] for found in by_k]
    assert any(len(found) >= 2 for found in gaps), tried
    assert all(b >= 1.5 * a or b >= 4096 for found in gaps for a, b in pairwise(found)), tried


def test_how_long_a_larger_k_waits_is_remembered_over_a_restart() -> None:
    """As much as how long a drafter waits."""
    limits = {"drafters": {"draft_model": {"max_k": 16, "prior": 0.7}}, "exploration": {"share": 0.1, "control": 0}}
    policies, ability, tried = only(**limits), lane(cost=toy_cost(0.05)), Counter[int]()
    while max(tried.values(), default=0) < 3:
        decision = decide(policies, features("code"), view(ability))
        tried[decision.plan.k] += decision.rule == "explore"
    key = {"build": "1"}
    learner = Learner.from_state(json.loads(json.dumps(policies.learner.to_state(key))), key)
    again = PolicySet([policies.policy("only")], "only", learner)
    rules = [decide(again, features("code"), view(ability)).rule for _ in range(40)]
    assert "explore" not in rules
    gates = {one[-1]: gate for one, gate in learner.gates.items()}
    assert gates[max(tried)].backoff == 8 * Gate().backoff


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "draft_model"])
@pytest.mark.parametrize("task", ["chat", "quote", "code"])
@pytest.mark.parametrize("cost", [EMBEDDED.cost, toy_cost(0.1)], ids=["small-cpu", "flat"])
def test_a_drafter_without_acceptance_costs_at_most_five_percent(drafter: str, task: str, cost) -> None:
    """Over three hundred requests, tries included, and from the twentieth request on at any moment."""
    policies = only(drafters={drafter: {"max_k": 5}})
    ability, random = lane(drafter=drafter, cost=cost), Random(1)
    taken_s = plain_s = 0.0
    for i in range(300):
        decision = decide(policies, features(task), view(ability))
        served = serve(decision, Arrival(0, decision.features, 100), constant_truth(0.0), random)
        policies.learn(decision, served.feedback)
        taken_s, plain_s = taken_s + served.seconds, plain_s + served.plain_s
        if i >= 20:
            assert taken_s <= 1.05 * plain_s
    assert taken_s <= 1.02 * plain_s


@pytest.mark.parametrize("task", ["chat", "quote", "code"])
@pytest.mark.parametrize("dear", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("speed", [0.75, 1.1, 1.7])
def test_useless_drafts_cost_at_most_five_percent_on_a_lane_of_another_speed(speed: float, dear: float, task: str):
    """All rounds take so many times what is predicted, drafts are dearer or cheaper, and answers are short; two
    drafters that are always full and always wrong."""
    policies = only(drafters={"ngram": {"max_k": 5}, "suffix": {"max_k": 5}})
    taken = 0.0
    for _ in range(100):
        decision = decide(policies, features(task))
        k = decision.plan.k
        cost = 1 + dear * (0.04 + 0.06 * k) if k else 1.0
        taken += cost
        stats = SpecStats(16, 0, (16,), 16 * k) if k else None
        policies.learn(decision, Feedback(stats, 17, 16 * speed * cost * decision.plain_round_s()))
    assert taken <= 1.05 * 100


def test_a_cost_model_that_is_wrong_is_found_out() -> None:
    """Drafts are accepted, but rounds with them take three times what was predicted: plain wins in the end."""
    policies = only(drafters={"draft_model": {"max_k": 5}})
    ability, random, plans = lane(cost=toy_cost(0.05)), Random(1), []
    for _ in range(200):
        decision = decide(policies, features("chat"), view(ability))
        served = serve(decision, Arrival(0, decision.features, 100), constant_truth(0.5), random)
        factor = 1 if decision.plan.is_off else 3
        feedback = Feedback(served.feedback.stats, served.feedback.num_tokens, served.seconds * factor)
        policies.learn(decision, feedback)
        plans.append(decision.plan)
    assert sum(plan.is_off for plan in plans[20:]) > 0.9 * len(plans[20:])
