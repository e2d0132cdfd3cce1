"""Decisions: the shipped table, who is asked, what requests fix, trials, and that any policy decides any request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from policy_world import EMBEDDED, NOW_S, decide, features, lane, only, view, workload

from outrider.config import packaged_data
from outrider.core import TASKS, Hints, LaneAbility, LaneView
from outrider.errors import InvalidRequest
from outrider.policy.decide import Origin, PolicySet
from outrider.policy.features import Features
from outrider.policy.learning import Ledger
from outrider.policy.loader import Source, load_policies
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.policy.priors import LOOK_UPS


def shipped(default: str = "default") -> PolicySet:
    return load_policies(Source([packaged_data("policies")], default))


@pytest.mark.parametrize(
    ("task", "temperature", "ks"),
    # The k with 0, 1, 2 and 8 other requests on the lane, and with unknown load.
    [
        ("quote", 0.0, (8, 8, 7, 5, 5)),
        ("quote", 1.0, (3, 2, 1, 0, 0)),
        ("extract", 0.0, (7, 5, 4, 3, 3)),
        ("summarise", 0.5, (5, 2, 1, 0, 0)),
        ("rag", 1.0, (2, 1, 1, 0, 0)),
        ("rag", 1.2, (0, 0, 0, 0, 0)),
        ("code", 0.0, (5, 2, 1, 0, 0)),
        ("code", 1.0, (0, 0, 0, 0, 0)),
        ("edit", 0.0, (7, 5, 4, 3, 3)),
        ("maths", 0.0, (3, 2, 1, 0, 0)),
        ("translate", 0.7, (0, 0, 0, 0, 0)),
        ("chat", 0.0, (3, 2, 1, 0, 0)),
        ("chat", 0.7, (0, 0, 0, 0, 0)),
        ("creative", 0.0, (3, 2, 0, 0, 0)),
        ("creative", 1.2, (0, 0, 0, 0, 0)),
    ],
)
def test_shipped_policies(task: str, temperature: float, ks: tuple[int, ...]) -> None:
    """Look-up where it pays on a small engine: quotes and edits at any load, hot and creative text hardly ever."""
    plans = [decide(shipped(), features(task, temperature), view(EMBEDDED, n)).plan for n in (0, 1, 2, 8, None)]
    assert tuple(plan.k for plan in plans) == ks
    assert {plan.drafter for plan in plans} <= {*LOOK_UPS, "off"}


def asked(policies: PolicySet, found: Features, **origin: Any) -> str:
    return policies.decide(found, Hints(), [view(EMBEDDED)], NOW_S, Origin(**origin)).workload


def test_the_workload_with_most_conditions_is_asked() -> None:
    """Of equals the first; what a file does not name does not matter; without a match the default."""
    policies = PolicySet(
        [
            workload("zebra", match={"tasks": ["code", "chat"]}),
            workload("ant", match={"tasks": ["code"]}),
            workload("mine", match={"tasks": ["code"], "models": ["m"]}),
            workload("gold", match={"tenants": ["t"], "models": ["m"], "headers": {"X-Tier": "gold", "X-App": "a"}}),
            workload("rest"),
        ],
        "rest",
    )
    assert asked(policies, features("code")) == "zebra"
    assert asked(policies, features("code"), model="m") == "mine"
    tenant = features("code", tenant="t")
    assert asked(policies, tenant, model="m", headers={"x-tier": "gold", "x-app": "a"}) == "gold"
    assert asked(policies, tenant, model="m", headers={"x-tier": "tin", "x-app": "a"}) == "mine"
    assert asked(policies, features("maths")) == "rest"


def test_a_workload_says_what_its_requests_are_for() -> None:
    """Its word counts for what is believed of drafts and what is learnt, but not against the request's own."""
    drafters = {"ngram": {"max_k": 8}}
    mine = workload("mine", drafters, match={"tenants": ["t"]}, task="quote")
    policies = PolicySet([mine, workload("rest", drafters)], "rest")
    guessed = features("chat", tenant="t", is_task_given=False)
    found = [decide(policies, one) for one in (guessed, features("chat", tenant="t"), features("quote", tenant="t"))]
    assert [one.features.task for one in found] == ["quote", "chat", "quote"]
    assert [one.cell.task for one in found] == ["quote", "chat", "quote"]
    assert found[0].plan == found[2].plan != found[1].plan
    assert decide(policies, replace(guessed, tenant=None)).features.task == "chat"


def test_off_as_default_leaves_the_other_files_in_charge() -> None:
    """The default serves what no file matches; a task of its own file keeps it."""
    assert decide(shipped("off"), features("maths")).plan == PLAN_OFF
    assert decide(shipped("off"), features("code")).plan == Plan("suffix", 5)


def test_reasons_tell_workload_load_plan_and_alternatives() -> None:
    """Readable, with expected speeds; the same as data with codes."""
    decision = decide(shipped(), features("code"), view(EMBEDDED, 1))
    assert decision.reasons[0] == "task code (given by the request) belongs to workload code"
    assert decision.reasons[1] == "1 other request on lane one"
    assert decision.reasons[2].startswith("suffix with k 2 on one, ")
    assert decision.reasons[2].endswith(" tokens/s expected: it is expected to be fastest")
    assert any(reason.startswith("possible: plain decoding on one, ") for reason in decision.reasons)
    assert "not prediction on one: the request carries no prediction" in decision.reasons
    found = decision.candidates()
    assert {"lane": "one", "drafter": "prediction", "refused": "no-prediction"} in found
    rates = {(c["drafter"], c["k"]): c["tokens_per_s"] for c in found if "k" in c}
    assert rates["suffix", 2] > rates["off", 0]


def test_unknown_load_is_said() -> None:
    """It counts as full."""
    reasons = decide(shipped(), features("code"), view(EMBEDDED, None)).reasons
    assert reasons[1] == "the load of lane one is unknown or stale, so it counts as full"


@pytest.mark.parametrize("hints", [{"off": True}, {"drafter": "off"}, {"k": 0}])
def test_off_is_never_speculated(hints: dict[str, Any]) -> None:
    """The request's word is final, and the only reason."""
    for task in TASKS:
        decision = decide(shipped(), features(task), **hints)
        assert (decision.plan, decision.rule) == (PLAN_OFF, "request")
        assert decision.reasons == ("the request turned speculation off",)


def test_off_goes_to_a_lane_that_can_decode_plainly() -> None:
    """To one that cannot speculate, if there is one; and is refused when there is none."""
    speculative = lane("spec", has_plain=False)
    assert decide(only(), features(), view(speculative), view(EMBEDDED), off=True).lane == "one"
    plain = LaneAbility("plain", (), cost=EMBEDDED.cost)
    assert decide(only(), features(), view(EMBEDDED), view(plain, 1), off=True).lane == "plain"
    with pytest.raises(InvalidRequest, match="no lane can run without speculation"):
        decide(only(), features(), view(speculative), off=True)


@pytest.mark.parametrize(
    ("hints", "plan"),
    [
        ({"k": 7}, Plan("ngram", 7)),
        ({"drafter": "suffix", "k": 7}, Plan("suffix", 7)),
        ({"drafter": "ngram"}, Plan("ngram", 5)),
    ],
)
def test_a_request_fixes_what_it_names(hints: dict[str, Any], plan: Plan) -> None:
    """What it leaves open is chosen; limits and gains do not count, except that k stays within the drafter's."""
    decision = decide(only(temperature=[{"max": 0.1}]), features("quote", 1.0), **hints)
    if "k" in hints:
        assert decision.plan == plan
    else:
        assert decision.plan.drafter == plan.drafter and 1 <= decision.plan.k <= plan.k
    assert decision.rule == "request"


def trial(mode: str, share: float = 0.25) -> PolicySet:
    tried = {"workload": "next", "mode": mode, "share": share}
    return PolicySet([workload(trial=tried), workload("next", {"suffix": {"max_k": 2}})], "only")


def test_a_workload_says_whether_suffix_learns_from_answers() -> None:
    """Its word travels with the plan, also where the request fixes the drafter; other drafters know nothing of it."""
    for learn in (True, False):
        policies = only(drafters={"suffix": {"max_k": 8, "learn": learn}, "ngram": {"max_k": 8}})
        for hints in ({}, {"k": 3}):
            decision = decide(policies, features("quote"), drafter="suffix", **hints)
            assert (decision.plan.drafter, decision.plan.learn) == ("suffix", learn)
        assert decide(policies, features("quote"), drafter="ngram").plan.learn
    assert decide(only(), features("quote"), drafter="suffix").plan.learn, "one that the workload does not name"


def test_a_shadow_only_reports() -> None:
    """Every fourth request is decided twice, and runs as always."""
    policies = trial("shadow")
    decisions = [decide(policies, features("quote")) for _ in range(12)]
    assert {d.plan for d in decisions} == {Plan("ngram", 5)}
    assert sum(d.trial is not None for d in decisions) == 3
    assert any("shadow next would run: suffix with k 2" in reason for reason in decisions[3].reasons)


@pytest.mark.parametrize("hints", [{"off": True}, {"k": 3}, {"drafter": "medusa"}])
def test_what_a_request_fixes_is_not_tried(hints: dict[str, Any]) -> None:
    """Nor what comes nearest to it: the workloads would not differ."""
    policies = trial("canary", 1.0)
    assert {decide(policies, features("quote"), **hints).workload for _ in range(4)} == {"only"}


def test_a_canary_runs_the_other_for_its_share() -> None:
    """Every fourth request, and it names both plans."""
    policies = trial("canary")
    decisions = [decide(policies, features("quote")) for _ in range(12)]
    assert [d.workload for d in decisions].count("next") == 3
    canary = decisions[3]
    assert canary.plan == Plan("suffix", 2)
    assert canary.reasons[0].endswith("; canary of workload only")
    assert any("only would run: ngram with k 5" in reason for reason in canary.reasons)


def test_a_trial_tells_how_the_two_differ() -> None:
    """Whichever runs: the plans, and both speeds that are expected."""
    for mode in ("shadow", "canary"):
        tried = decide(trial(mode, 1.0), features("quote")).trial
        assert tried is not None and (tried.result, tried.workload, tried.other) == ("other", "only", "next")
        alone = [
            decide(only(drafters=one), features("quote")).option.rate for one in (None, {"suffix": {"max_k": 2}})
        ]
        assert tried.rates == pytest.approx(alone)
    tried = decide(trial("shadow", 1.0), features("creative", 1.5)).trial
    assert tried is not None and tried.result == "same", "both decode plainly"


TWO = {"ngram": {"max_k": 5}, "suffix": {"max_k": 5}}


@pytest.mark.parametrize(("mode", "run", "watched"), [("shadow", "only", "next"), ("canary", "next", "only")])
def test_what_a_trial_does_not_run_leaves_no_trace(mode: str, run: str, watched: str) -> None:
    """The workload that is only asked counts, tries and holds nothing, whatever it says."""
    tries = {"share": 0.2, "control": 0.2}
    tried = {"workload": "next", "mode": mode, "share": 1.0}
    policies = PolicySet(
        [workload("only", TWO, trial=tried, exploration=tries), workload("next", TWO, exploration=tries)], "only"
    )
    found = [decide(policies, features("quote"), view(EMBEDDED, i % 2)) for i in range(100)]
    assert {d.workload for d in found} == {run} and {"control", "explore"} < {d.rule for d in found}
    assert all(d.trial is not None and "would run" in d.trial.shown for d in found)
    learner = policies.learner
    assert learner.ledger(watched) == Ledger() and learner.ledger(run).num_decided == 100
    assert {gate.due for key, gate in learner.gates.items() if key[0] == watched} <= {0}


@pytest.mark.parametrize("mode", ["shadow", "canary"])
def test_a_trial_that_would_refuse_only_says_so(mode: str) -> None:
    """The request is the live workload's, which serves it as always."""
    tried = {"workload": "next", "mode": mode, "share": 1.0}
    policies = PolicySet([workload(trial=tried), workload("next", exact=True)], "only")
    inexact = LaneAbility("one", EMBEDDED.drafters, cost=EMBEDDED.cost, exact=frozenset())
    decision = decide(policies, features("quote", 0.7, surfaces=["temperature"]), view(inexact))
    assert decision.workload == "only"
    assert decision.trial is not None and decision.trial.result == "refused" and decision.trial.rates is None
    assert (
        decision.trial.shown
        == f"{mode} next would refuse: temperature: the workload is exact, and no lane that is "
        + ("ready honours it")
    )


def test_a_lane_that_is_given_anew_is_another_lane() -> None:
    """Abilities are remembered by identity: the same name with fewer k is not taken for the old one."""
    policies = only(drafters={"draft_model": {"max_k": 8}})
    assert decide(policies, features("quote"), view(lane(ks=(4,)))).plan.k == 4
    assert decide(policies, features("quote"), LaneView(lane(ks=(2,)), view(lane()).load)).plan.k == 2
