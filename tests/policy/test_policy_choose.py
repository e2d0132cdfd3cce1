"""The choice against tables worked out by hand: best k by acceptance, draft cost and load, and what limits it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_world import NOW_S, decide, features, lane, only, toy_cost, view, workload

from outrider.core import MAX_K, DrafterAbility, LaneAbility
from outrider.policy.decide import PolicySet
from outrider.policy.learning import Feedback
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.policy.simulate import Arrival, constant_truth, serve


def best_k(alpha: float, draft: float, num_others: int = 0, **fields: Any) -> int:
    drafters = {"draft_model": {"max_k": 16, "prior": alpha}}
    ability = LaneAbility("one", lane().drafters, cost=toy_cost(draft), max_running=512)
    policies = only(drafters=drafters, **fields)
    # The task whose prior is the same at all depths.
    return decide(policies, constant(alpha), view(ability, num_others)).plan.k


def constant(alpha: float) -> Any:
    """A task whose prior for the drafter is the same at all depths."""
    task = {0.5: "chat", 0.45: "creative", 0.7: "code", 0.75: "quote"}[alpha]
    return features(task)


@pytest.mark.parametrize(
    ("alpha", "draft", "expected"),
    [(0.5, 0.02, 4), (0.5, 0.05, 3), (0.5, 0.1, 2), (0.5, 0.2, 1), (0.7, 0.02, 8), (0.7, 0.05, 6), (0.7, 0.1, 4),
     (0.7, 0.2, 3)],
)  # fmt: skip
def test_best_k_by_acceptance_and_draft_cost(alpha: float, draft: float, expected: int) -> None:
    """The published formula's table: 1 + a + ... + a^k over 1 + k c."""
    assert best_k(alpha, draft) == expected


@pytest.mark.parametrize(("batch", "expected"), [(1, 6), (32, 6), (64, 3), (128, 1), (192, 1), (256, 0), (512, 0)])
def test_best_k_by_load(batch: int, expected: int) -> None:
    """Rows beyond the knee cost, so drafts are shortened before anything else."""
    assert best_k(0.7, 0.05, batch - 1) == expected


@given(
    st.sampled_from([0.5, 0.7]), st.sampled_from([0.02, 0.05, 0.1, 0.2]), st.lists(st.integers(0, 600), min_size=2)
)
@settings(max_examples=60, deadline=None)
def test_k_never_grows_with_load(alpha: float, draft: float, loads: list[int]) -> None:
    """Monotone over any ascending loads, unknown load being the largest."""
    ks = [best_k(alpha, draft, num) for num in sorted(loads)]
    assert ks == sorted(ks, reverse=True)


@pytest.mark.parametrize(("usage", "expected"), [(None, 8), (0.89, 8), (0.9, 4), (0.96, 4), (0.97, 0), (1.0, 0)])
def test_a_cache_that_fills_up_sheds_drafts_first(usage: float | None, expected: int) -> None:
    """Their rows take places in it: half the k that is allowed from nine tenths on, none when it is all but full; the
    reasons say so, and what the request itself fixed stays."""
    policies = only(drafters={"draft_model": {"max_k": 8}})
    ability = lane(cost=toy_cost(0.01))
    seen = view(ability, 3, token_usage=usage)
    decision = decide(policies, features("quote"), seen)
    assert decision.plan.k == expected
    told = [reason for reason in decision.reasons if "nearly full" in reason]
    assert len(told) == (expected < 8) and all(("no drafts" in reason) is (expected == 0) for reason in told)
    assert decide(policies, features("quote"), seen, k=8).plan.k == 8


@pytest.mark.parametrize("task", ["quote", "code", "chat"])
def test_deterministic_drafts_never_grow_with_temperature(task: str) -> None:
    """And a request that is hot enough is not speculated."""
    policies = [only(drafters={"ngram": {"max_k": 16}}) for _ in range(9)]
    hot = [t / 5 for t in range(9)]
    ks = [decide(p, features(task, t)).plan.k for p, t in zip(policies, hot, strict=True)]
    assert ks == sorted(ks, reverse=True)
    assert ks[0] > ks[-1]


MODEL = {"draft_model": {"min_k": 2, "max_k": 6}}


def test_a_lane_gives_the_k_that_it_has() -> None:
    """The best of those that it can run, within the workload's bounds."""
    policies = only(drafters=MODEL)
    fixed = lane(ks=(1, 7))
    decision = decide(policies, features("quote"), view(fixed))
    assert decision.plan == PLAN_OFF
    assert [(r.code, r.detail) for r in decision.refused] == [("no-k", "2 and 6")]
    assert decide(only(drafters=MODEL), features("quote"), view(lane(ks=(1, 3, 7)))).plan.k == 3


def test_the_emptier_of_equal_lanes_is_taken() -> None:
    """Below the knee both are as fast, so the load decides; a queue counts for more."""
    drafters = {"draft_model": {"max_k": 3}}
    views = [view(lane("full", cost=toy_cost()), 4), view(lane("empty", cost=toy_cost()), 1)]
    assert decide(only(drafters=drafters), features("quote"), *views).lane == "empty"
    waiting = view(lane("queue", cost=toy_cost(), max_running=2), 2, num_waiting=6)
    assert decide(only(drafters=drafters), features("quote"), waiting, views[0]).lane == "full"


def test_a_queue_costs_its_share_of_the_speed() -> None:
    """A lane that runs four at once and has four more waiting gives half of it, so a slower one without is taken."""
    lanes = [lane("one", cost=toy_cost(), max_running=4), lane("slow", cost=toy_cost(0.2), max_running=4)]
    full, waiting = (view(lanes[0], 3, num_waiting=num) for num in (0, 4))
    policies = only(drafters={"draft_model": {"max_k": 3}})
    rates = [decide(policies, features("quote"), one).option.rate for one in (full, waiting)]
    assert rates[1] == pytest.approx(rates[0] * 4 / 8)
    taken = [decide(policies, features("quote"), one, view(lanes[1], 3)).lane for one in (full, waiting)]
    assert taken == ["one", "slow"]


@pytest.mark.parametrize(("drafter", "rises"), [("suffix", True), ("ngram", True), ("draft_model", False)])
def test_a_dry_run_on_the_prompt_speaks_for_look_ups_alone(drafter: str, rises: bool) -> None:
    """What stands in the prompt again and again is worth more drafts before any answer was seen."""
    drafters, able = {drafter: {"max_k": 8}}, view(lane(drafter=drafter, cost=toy_cost(0.1, 8)), 3)
    fresh, told = (decide(only(drafters=drafters), features("chat", dry_run=x), able) for x in (0.0, 0.9))
    assert (told.plan.k > fresh.plan.k) is rises and (rises or told.plan == fresh.plan)


def test_plain_lanes_take_what_does_not_gain() -> None:
    """A lane that can only speculate loses to a plain one where drafts do not pay."""
    speculative = lane("spec", ks=(5,), has_plain=False, cost=toy_cost(0.6))
    plain = LaneAbility("plain", (), cost=toy_cost())
    policies = only(drafters={"draft_model": {"max_k": 5}})
    assert decide(policies, features("chat"), view(speculative), view(plain)).lane == "plain"
    alone = decide(policies, features("chat"), view(speculative))
    assert (alone.plan, alone.rule) == (Plan("draft_model", 5), "no-plain")


def test_bands_and_shares_bound_k() -> None:
    """Up to a band's bound, included; above the last band there is none; priorities share beside other requests."""
    drafters = {"draft_model": {"max_k": 4}}
    bands = only(drafters=drafters, temperature=[{"max": 0.3}, {"max": 0.8, "max_k": 2}])
    big = view(lane(cost=toy_cost()))
    assert [decide(bands, features("quote", t), big).plan.k for t in (0.3, 0.31, 0.8, 0.81)] == [4, 2, 2, 0]
    for num, k in ((0, 4), (1, 4), (2, 1), (3, 0)):
        loaded = only(drafters=drafters, load=[{"max": 1}, {"max": 2, "max_k": 1}])
        assert decide(loaded, features("quote"), view(lane(cost=toy_cost()), num)).plan.k == k
    for priority, num, k in ((-1, 1, 1), (-1, 0, 4), (0, 1, 2), (0, 0, 4), (1, 1, 3)):
        shared = only(drafters=drafters, shares={"low": 0.25, "normal": 0.5, "high": 0.75})
        found = features("quote", priority=priority)
        assert decide(shared, found, view(lane(cost=toy_cost()), num)).plan.k == k


def test_unknown_load_is_a_full_lane() -> None:
    """No reading and an old one get what a full lane gets."""
    drafters = {"draft_model": {"max_k": 8}}
    ability = lane(cost=toy_cost(knee=16), max_running=64)
    full, idle = (decide(only(drafters=drafters), features("quote"), view(ability, n)).plan.k for n in (63, 0))
    assert full < idle
    for unknown in (view(ability, None), view(ability, 0, read_at_s=NOW_S - 11)):
        assert decide(only(drafters=drafters), features("quote"), unknown).plan.k == full


@pytest.mark.parametrize(
    ("objective", "max_tokens", "k"),
    [({"tpot_ms": 25}, None, 0), ({"tpot_ms": 13}, None, 1), ({"tpot_ms": 9}, None, 3), ({"tpot_ms": 0.1}, None, 7),
     ({"deadline_s": 1.3}, 100, 1), ({"deadline_s": 100}, 100, 0)],
)  # fmt: skip
def test_an_objective_takes_the_least_that_reaches_it(objective: dict[str, float], max_tokens: int, k: int) -> None:
    """Plain when that is enough, else the fewest drafts, else the fastest."""
    policies = only(drafters={"draft_model": {"max_k": 8}}, objective=objective)
    decision = decide(policies, features("quote", max_tokens=max_tokens), view(lane(cost=toy_cost())))
    assert decision.plan.k == k
    assert decision.rule == ("best-rate" if objective == {"tpot_ms": 0.1} else "objective")


@given(st.integers(0, MAX_K), st.sampled_from(["quote", "chat"]), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_what_a_request_fixes_stands(k: int, task: str, num: int) -> None:
    """Its k above all limits and at any load, and off is off."""
    policies = only(drafters={"draft_model": {"max_k": 1}}, temperature=[{"max": 0.1, "max_k": 1}])
    decision = decide(policies, features(task, 1.5), view(lane(), num), k=k)
    assert (decision.plan.k, decision.rule) == (k, "request")


def test_what_is_remembered_is_what_would_be_found_anew() -> None:
    """While acceptance is learnt and round times and loads change with every request: as near as that is followed."""
    limits = workload(drafters={name: {"max_k": 8} for name in ("ngram", "eagle2", "draft_model")})
    lanes = [
        LaneAbility(f"lane{i}", tuple(DrafterAbility(name, tuple(range(1, 9))) for name in limits.drafters))
        for i in range(3)
    ]
    policies, random = PolicySet([limits], "only"), Random(1)
    for number in range(600):
        views = [view(one, random.randrange(12)) for one in lanes]
        found = features("code")
        decision = decide(policies, found, *views)
        if number % 20 == 0:
            anew = decide(PolicySet([limits], "only", policies.learner), found, *views)
            rates = [[option.rate for option in one.possible] for one in (decision, anew)]
            assert rates[0] == pytest.approx(rates[1], rel=0.06)
        served = serve(decision, Arrival(0, found, 100), constant_truth(0.4), random)
        slower = replace(served.feedback, decode_s=served.seconds * (1 + number / 300))
        policies.learn(decision, slower)


def test_what_was_learnt_counts_for_the_very_next_request() -> None:
    """An answer whose drafts were all accepted makes the same plan worth more, as if it had always been known."""
    policies, ability = only(drafters={"draft_model": {"max_k": 4}}), lane(cost=toy_cost())
    before = decide(policies, features("chat"), view(ability))
    served = serve(before, Arrival(0, before.features, 100), constant_truth(1.0), Random(1))
    policies.learn(before, served.feedback)
    after = decide(policies, features("chat"), view(ability))
    anew = decide(PolicySet([policies.policy("only")], "only", policies.learner), features("chat"), view(ability))
    assert after.option.rate > 1.05 * before.option.rate
    assert [one.rate for one in after.possible] == pytest.approx([one.rate for one in anew.possible])


def test_one_decision_brings_few_rows_up_to_date_and_its_answer_the_rest() -> None:
    """So that none takes long, on however many lanes; the next one is as if it had always been known."""
    limits = workload(drafters={"draft_model": {"max_k": 4}}, exploration={"share": 0, "control": 0})
    policies = PolicySet([limits], "only")
    lanes = [lane(f"lane{i}", cost=toy_cost()) for i in range(10)]
    quiet, busy = ([view(one, num) for one in lanes] for num in (0, 5))
    decide(policies, features("chat"), *quiet)
    taught = decide(policies, features("chat"), *busy)
    served = serve(taught, Arrival(0, taught.features, 100), constant_truth(1.0), Random(1))
    policies.learn(taught, served.feedback)

    def num_behind() -> int:
        found = decide(policies, features("chat"), *quiet)
        anew = decide(PolicySet([limits], "only", policies.learner), features("chat"), *quiet)
        policies.learn(found, Feedback(None))
        return sum(a.rate < 0.95 * b.rate for a, b in zip(found.possible, anew.possible, strict=True))

    assert num_behind() == 6
    assert num_behind() == 0
