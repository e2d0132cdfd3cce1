"""What a decision says of itself: only what was so when it was made."""

from __future__ import annotations

from dataclasses import replace

from policy_world import EMBEDDED, decide, features, lane, only, toy_cost, view, workload

from outrider.core import SURFACES, LaneAbility
from outrider.policy.decide import PolicySet
from outrider.policy.decision import RULES
from outrider.policy.learning import Gate

QUIET = {"share": 0, "control": 0}


def test_a_plan_that_is_kept_is_not_called_the_fastest() -> None:
    """Where another is a little better, and has not been so for long: speculation is kept, and so is none."""
    policies = only(exploration=QUIET, drafters={"ngram": {"max_k": 8}})
    first = [decide(policies, features("quote"), view(EMBEDDED, n)) for n in (2, 1)]
    assert [one.rule for one in first] == ["best-rate", "held"]
    assert first[1].plan == first[0].plan and max(one.rate for one in first[1].possible) > first[1].option.rate
    assert first[1].reasons[2].endswith(RULES["held"])
    policies = only(exploration=QUIET)
    found = [decide(policies, features("code"), view(EMBEDDED, n)) for n in (6, 2)]
    assert [(one.rule, one.plan.k) for one in found] == [("plain", 0), ("held", 0)]


def test_without_a_drafter_nothing_is_said_of_its_gain() -> None:
    """None was compared: the workload allows none, it is too hot, or the lane has none."""
    hot = only(temperature=[{"max": 0.5}])
    cases = [(only(drafters={}), EMBEDDED, 0.0), (hot, EMBEDDED, 1.0), (only(), LaneAbility("bare", ()), 0.0)]
    for policies, ability, temperature in cases:
        decision = decide(policies, features("code", temperature), view(ability))
        assert (decision.rule, decision.plan.k) == ("no-drafter", 0)
    dear = only(drafters={"draft_model": {"max_k": 4}})
    assert decide(dear, features("creative"), view(lane(cost=toy_cost(2.0)))).rule == "plain"


def test_drafters_that_do_not_pay_are_named_and_not_called_possible() -> None:
    """They were not compared, though they would look faster; one that is tried all the same is not refused."""
    policies = only(exploration=QUIET)
    fresh = decide(policies, features("quote"))
    policies.learner.gates["only", "ngram", "quote", 0, 0] = Gate(utility=0.5, num=20)
    policies.learner.num_changes += 1
    decision = decide(policies, features("quote"))
    assert fresh.plan.k and decision.plan.is_off
    assert [one.drafter for one in decision.possible] == ["off"]
    assert ("ngram", "not-paying") in {(one.drafter, one.code) for one in decision.refused}
    assert any(reason.startswith("not ngram on one: ") for reason in decision.reasons)
    tries = only(exploration={"share": 0.2, "control": 0})
    tries.learner.gates["only", "ngram", "quote", 0, 0] = Gate(utility=0.5, num=20)
    tries.learner.num_changes += 1
    tried = next(one for one in (decide(tries, features("quote")) for _ in range(20)) if one.rule == "explore")
    assert tried.plan.drafter == "ngram" and all(one.code != "not-paying" for one in tried.refused)


def test_what_stops_to_pay_later_was_possible_when_it_was_decided() -> None:
    """Decisions of one kind share what they compared, and each is explained by what was so when it was made."""
    policies = only(exploration=QUIET)
    before = decide(policies, features("quote"))
    policies.learner.gates["only", "ngram", "quote", 0, 0] = Gate(utility=0.5, num=20)
    policies.learner.num_changes += 1
    after = decide(policies, features("quote"))
    assert [one.drafter for one in before.possible] == ["off", "ngram"]
    assert [one.drafter for one in after.possible] == ["off"]
    assert not any(one.code == "not-paying" for one in before.refused)


def test_why_a_workload_was_asked_is_what_it_matches_on() -> None:
    """By its task, by where the request comes from, or as the default, which may be for another task."""
    policies = PolicySet(
        [workload("mine", match={"tenants": ["t"]}), workload("code", match={"tasks": ["code"]})], default="code"
    )
    task = "task chat (given by the request)"
    found = [
        (features("code"), "task code (given by the request) belongs to workload code"),
        (features("chat"), f"no workload is for {task}, so code by default"),
        (features("chat", tenant="t"), f"{task}; workload mine takes it"),
    ]
    for one, reason in found:
        assert decide(policies, one).reasons[0] == reason


def test_who_named_the_task_is_told() -> None:
    """The request, else the workload, else nobody."""
    policies = PolicySet(
        [workload("mine", match={"tenants": ["t"]}, task="quote"), workload("rest", task="code")], "rest"
    )
    given = features("chat", tenant="t")
    found = [
        (given, "task chat (given by the request); workload mine takes it"),
        (replace(given, is_task_given=False), "task quote (given by the workload); workload mine takes it"),
        (
            replace(given, is_task_given=False, tenant=None),
            "task code (given by the workload); workload rest by default",
        ),
    ]
    for one, reason in found:
        assert decide(policies, one).reasons[0] == reason


def test_reasons_of_requests_of_one_kind_are_each_ones_own() -> None:
    """Though what is alike is worked out once: the field that asks, who named the task, what was learnt between."""
    policies = only(exploration=QUIET)
    ability = LaneAbility("one", EMBEDDED.drafters, cost=EMBEDDED.cost, exact=SURFACES - {"penalties"})
    asked = features("quote", surfaces=["penalties"])
    for name in ("frequency_penalty", "presence_penalty") * 2:
        for is_given, source in ((True, "given by the request"), (False, "guessed")):
            one = replace(asked, surfaces={"penalties": name}, is_task_given=is_given)
            reasons = decide(policies, one, view(ability)).reasons
            assert source in reasons[0] and reasons[-1].startswith(f"no lane honours {name} exactly")
    before = decide(policies, asked, view(ability))
    policies.learner.gates["only", "ngram", "quote", 0, 0] = Gate(utility=0.5, num=20)
    policies.learner.num_changes += 1
    after = decide(policies, asked, view(ability))
    assert before.plan.k and any(reason.startswith("not ngram on one: it has not paid") for reason in after.reasons)
