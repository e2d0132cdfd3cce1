"""Learning: gates, ledgers, replays, and state that survives JSON and only the same model."""

from __future__ import annotations

import json
from random import Random

import pytest
from policy_world import decide, features, only, workload

from outrider.core import LaneAbility, SpecStats
from outrider.policy.decide import PolicySet
from outrider.policy.learning import Feedback, Gate, Learner, Ledger
from outrider.policy.lookup import Written
from outrider.policy.simulate import Arrival, constant_truth, serve

KEY = {"model": "m", "build": "1"}


def trained() -> Learner:
    policies = only()
    for _ in range(30):
        decision = decide(policies, features("quote"))
        served = serve(decision, Arrival(0, decision.features, 100), constant_truth(0.4), Random(1))
        policies.learn(decision, served.feedback)
    return policies.learner


def test_state_survives_json() -> None:
    """Everything that decisions rest on is restored."""
    learner = trained()
    again = Learner.from_state(json.loads(json.dumps(learner.to_state(KEY))), KEY)
    assert again.to_state(KEY) == learner.to_state(KEY)
    assert again.gates == learner.gates and again.ledgers == learner.ledgers


@pytest.mark.parametrize("key", [{"model": "m", "build": "2"}, {"model": "n", "build": "1"}, {}])
def test_another_model_or_build_begins_anew(key: dict[str, str]) -> None:
    """What was learnt elsewhere says nothing here; neither does state of another layout, or none."""
    state = trained().to_state(KEY)
    assert Learner.from_state(state, key).ledgers == {}
    assert Learner.from_state(state | {"version": 0}, KEY).ledgers == {}
    assert Learner.from_state(None, KEY).ledgers == {}


def test_another_model_behind_a_lane_begins_anew() -> None:
    """Also when it was exchanged while nothing ran; the same one, come back, changes nothing, nor does a new lane."""
    policies = only()
    assert not policies.meets("one", "model a on 1")
    policies.learn(decision := decide(policies, features("quote")), Feedback(SpecStats(9, 0, (9,)), 10, 0.5))
    closed = decide(policies, features("quote"))
    assert not policies.meets("one", "model a on 1") and not policies.meets("two", "model b on 1")
    assert "only" in policies.learner.ledgers
    learner = Learner.from_state(json.loads(json.dumps(policies.learner.to_state(KEY))), KEY)
    for found in (policies, PolicySet([policies.policy("only")], "only", learner)):
        assert found.meets("one", "model a on 2")
        assert (found.learner.ledgers, found.learner.gates) == ({}, {})
        anew = decide(found, features("quote"))
        assert anew.option.rate == decision.option.rate > closed.option.rate
        assert not found.meets("one", "model a on 2")


def test_a_lane_that_takes_over_what_another_runs_keeps_what_is_known_of_it() -> None:
    """Only its own speed is learnt anew: of lanes that are rolled one by one the first alone begins anew."""
    learner = trained()
    for name in ("one", "two"):
        learner.meets(name, "a")
    assert learner.meets("one", "b") and not learner.ledgers
    learner.ledger("only")
    for name in ("one", "two"):
        learner.rounds.observe(name, "ngram", (1.0, 2.0))
    factors = learner.rounds.factors(LaneAbility.embedded("two"), 1)
    slow = factors.now
    assert not learner.meets("two", "b")
    assert "only" in learner.ledgers
    assert learner.rounds.correction("one", "ngram") > learner.rounds.correction("two", "ngram") == 1
    assert max(factors.now) == 1 > min(slow), "who keeps them is told"


def test_lanes_that_come_and_go_are_forgotten() -> None:
    """However many names there are, with what was learnt of them; the newest are remembered."""
    learner = Learner()
    for number in range(3000):
        learner.meets(f"lane-{number}", "a")
        learner.rounds.observe(f"lane-{number}", "off", (1.0, 2.0))
    assert len(learner.lanes) == len(learner.rounds.to_state()["lanes"]) <= 1024
    assert "lane-2999" in learner.lanes and learner.rounds.correction("lane-0") == 1


def test_missing_statistics_are_not_zero_acceptance() -> None:
    """A lane that cannot count teaches nothing about drafts, nor does a plain answer."""
    policies = only()
    decision = decide(policies, features("quote"))
    before = policies.learner.acceptance.curve(decision.cell).hazards
    policies.learn(decision, Feedback(None, 100, 1.0))
    plain = decide(policies, features("quote"), off=True)
    policies.learn(plain, Feedback(None, 100, 1.0))
    assert policies.learner.acceptance.curve(decision.cell).hazards == before
    assert policies.learner.gates == {}


def test_rounds_without_drafts_teach_nothing_of_drafts() -> None:
    """A lane may count verify steps of a plain answer, too."""
    policies = only()
    plain = decide(policies, features("quote"), off=True)
    policies.learn(plain, Feedback(SpecStats(10, 0, (10,), 0), 11, 1.0))
    assert policies.learner.acceptance.to_state() == Learner().acceptance.to_state()


def test_a_gate_closes_on_evidence_and_opens_on_a_success() -> None:
    """One bad request may be chance; tries wait longer each time until one pays."""
    gate = Gate()
    gate.measured(0.8)
    assert not gate.is_closed
    gate.measured(0.75)
    assert gate.is_closed
    gate.tried(100)
    first, backoff = gate.due, gate.backoff
    gate.tried(first)
    assert gate.due - first > first - 100 and gate.backoff > backoff
    gate.measured(1.3)
    assert not gate.is_closed and gate.backoff == Gate().backoff


def test_a_ledger_tells_tries_from_an_overdraft() -> None:
    """Small losses stop tries, larger ones stop what is not proven; gains pay them back."""
    ledger = Ledger()
    assert ledger.may_try and not ledger.is_overdrawn
    ledger.spent(100.0, 104.0)
    assert not ledger.may_try and not ledger.is_overdrawn
    ledger.spent(100.0, 110.0)
    assert ledger.is_overdrawn
    ledger.spent(100.0, 60.0)
    assert ledger.may_try


def test_what_requests_fix_does_not_decide_for_others() -> None:
    """Useless drafts that a client insists on, or none at all, close no gate and enter no ledger."""
    policies = only()
    for hints in [{"drafter": "ngram", "k": 16}] * 8 + [{"drafter": "medusa"}] * 8 + [{"off": True}] * 8:
        decision = decide(policies, features("quote"), **hints)
        assert not decision.is_own
        served = serve(decision, Arrival(0, decision.features, 100), constant_truth(0.0), Random(1))
        policies.learn(decision, served.feedback)
    learner = policies.learner
    assert (learner.gates, learner.num_changes) == ({}, 0)
    assert learner.ledgers == {}


def test_workloads_judge_drafters_by_their_own_requests() -> None:
    """Tries are counted in a workload's decisions, so its gates are its own: no other's numbers delay its tries."""
    tries = {"share": 0.2, "control": 0}
    two = {"ngram": {"max_k": 5}, "suffix": {"max_k": 5}}
    busy = workload("busy", two, match={"tenants": ["t"]}, exploration=tries)
    policies = PolicySet([busy, workload("other", two, exploration=tries)], "other")
    alone = PolicySet([workload("other", two, exploration=tries)], "other")
    for _ in range(3000):
        decide(policies, features("quote", tenant="t"))
    rules = [[decide(one, features("quote")).rule for _ in range(500)] for one in (policies, alone)]
    assert rules[0] == rules[1] and "explore" in rules[0]


def test_one_stalled_request_overdraws_nothing() -> None:
    """It was stopped for a minute at the very start: the ledger stays, and so do the plans that gain."""
    policies = only()
    decision = decide(policies, features("quote"))
    served = serve(decision, Arrival(0, decision.features, 100), constant_truth(0.8), Random(1))
    policies.learn(decision, Feedback(served.feedback.stats, served.feedback.num_tokens, 60.0))
    assert not policies.learner.ledger("only").is_overdrawn
    assert decide(policies, features("quote")).plan.drafter == "ngram"


def test_look_ups_learn_from_every_text() -> None:
    """Of copies that were written plainly both learn that they would have gained, and of fresh text that not; what is
    kept is counts, never the text."""
    copied = Written(list(range(200)), list(range(50, 150)))
    fresh = Written(list(range(200)), list(range(1000, 1100)))
    for written, rises in ((copied, True), (fresh, False)):
        policies = only()
        decision = decide(policies, features("code"), off=True)
        acceptance = policies.learner.acceptance
        cells = [decision.cell._replace(drafter=drafter) for drafter in ("ngram", "suffix")]
        before = [acceptance.curve(cell).tokens[4] for cell in cells]
        for _ in range(4):
            for _ in policies.replay(decision, written):
                pass
        after = [acceptance.curve(cell).tokens[4] for cell in cells]
        assert all(new > 1.2 * old if rises else new < old for new, old in zip(after, before, strict=True))
        assert "1050" not in json.dumps(policies.learner.to_state(KEY))
