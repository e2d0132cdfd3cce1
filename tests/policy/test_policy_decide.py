"""Decisions: the shipped table, overrides by the request, and what unknown load does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outrider.policy.rules import RULE_NONE, WorkloadPolicy

from outrider.config import packaged_data
from outrider.core import MAX_K, TASKS, Hints, LaneLoad
from outrider.policy.decide import Decision, PolicySet
from outrider.policy.features import Features
from outrider.policy.loader import load_policies
from outrider.policy.plan import PLAN_OFF, Plan

SHIPPED = load_policies(packaged_data("policies"), "default")
OFF, K2, K3, K5 = PLAN_OFF, Plan("ngram", 2), Plan("ngram", 3), Plan("ngram", 5)


def features(task: str = "chat", temperature: float = 0.0, **other: Any) -> Features:
    values: dict[str, Any] = {
        "is_task_given": True,
        "num_prompt_chars": 40,
        "num_prompt_tokens": 10,
        "self_repetition": 0.0,
        "num_messages": 1,
        "is_stream": False,
    }
    return Features(temperature=temperature, task=task, **{**values, **other})


def lane(num_requests: int, read_at_s: float = 100.0) -> LaneLoad:
    return LaneLoad(num_requests, 0, 64, read_at_s)


def one_workload(*rules: dict[str, Any], **fields: Any) -> PolicySet:
    data = {"version": 1, "workload": "only", "rules": list(rules), **fields}
    return PolicySet([WorkloadPolicy.model_validate(data)], "only")


def decide(policies: PolicySet, found: Features, load: LaneLoad | None = None, **hints: Any) -> Decision:
    return policies.decide(found, Hints(**hints), load, now_s=100.0)


@pytest.mark.parametrize(
    ("task", "temperature", "plans"),
    # Plans with 0, 1, 2 and 8 other requests on the lane, and with unknown load.
    [
        ("quote", 0.0, (K5, K5, K5, K5, K5)),
        ("quote", 0.8, (K5, OFF, OFF, OFF, OFF)),
        ("quote", 1.0, (K2, OFF, OFF, OFF, OFF)),
        ("extract", 0.0, (K5, K2, K2, OFF, OFF)),
        ("summarise", 0.5, (K5, K2, K2, OFF, OFF)),
        ("rag", 1.0, (K2, OFF, OFF, OFF, OFF)),
        ("rag", 1.2, (OFF, OFF, OFF, OFF, OFF)),
        ("code", 0.0, (K5, K2, K2, OFF, OFF)),
        ("code", 0.8, (K2, OFF, OFF, OFF, OFF)),
        ("code", 1.0, (OFF, OFF, OFF, OFF, OFF)),
        ("edit", 0.0, (K5, K2, K2, K2, K2)),
        ("edit", 0.8, (K5, OFF, OFF, OFF, OFF)),
        ("maths", 0.0, (K3, K2, OFF, OFF, OFF)),
        ("translate", 0.7, (OFF, OFF, OFF, OFF, OFF)),
        ("chat", 0.0, (K3, OFF, OFF, OFF, OFF)),
        ("chat", 0.7, (OFF, OFF, OFF, OFF, OFF)),
        ("creative", 0.0, (K3, OFF, OFF, OFF, OFF)),
        ("creative", 1.2, (OFF, OFF, OFF, OFF, OFF)),
    ],
)
def test_shipped_policies(task: str, temperature: float, plans: tuple[Plan, ...]) -> None:
    """What ships speculates where one pass has room or acceptance is high, and nowhere else."""
    loads = (lane(0), lane(1), lane(2), lane(8), None)
    assert tuple(decide(SHIPPED, features(task, temperature), load).plan for load in loads) == plans


@pytest.mark.parametrize(
    ("task", "workload"),
    [
        ("code", "code"),
        ("edit", "code"),
        ("quote", "extract"),
        ("extract", "extract"),
        ("summarise", "extract"),
        ("rag", "extract"),
        ("chat", "chat"),
        ("creative", "creative"),
        ("maths", "default"),
        ("translate", "default"),
    ],
)
def test_task_chooses_the_workload(task: str, workload: str) -> None:
    """Every task has its file, and the rest go to the default."""
    assert decide(SHIPPED, features(task)).workload == workload


def test_first_file_that_matches_wins() -> None:
    """Two files may claim a task; the one that comes first by file name is asked."""
    rule = {"name": "x", "off": True, "reason": "r"}
    base = {"version": 1, "match": {"tasks": ["code"]}, "rules": [rule]}
    first, second = (WorkloadPolicy.model_validate({**base, "workload": name}) for name in ("zebra", "ant"))
    assert decide(PolicySet([first, second], "ant"), features("code")).workload == "zebra"


def test_off_as_default_leaves_the_other_files_in_charge() -> None:
    """The default serves what no file matches; a task of its own file keeps its rules."""
    policies = load_policies(packaged_data("policies"), "off")
    assert decide(policies, features("maths"), lane(0)).plan == OFF
    assert decide(policies, features("code"), lane(0)).plan == K5


def test_reasons_name_conditions_with_values() -> None:
    """Each condition that held stands with the value seen and its bound."""
    when = {
        "tasks": ["chat", "rag"],
        "temperature": {"max": 0.3},
        "prompt_tokens": {"min": 5, "max": 50},
        "self_repetition": {"min": 0.25},
        "requests": {"max": 1},
    }
    policies = one_workload({"name": "all", "when": when, "drafter": "ngram", "k": 4, "reason": "because"})
    decision = decide(policies, features(self_repetition=0.5), lane(1))
    assert decision.reasons == (
        "no workload is for task chat (given by the request), so the default",
        "task chat in chat, rag",
        "temperature 0 <= 0.3",
        "10 prompt tokens >= 5 and <= 50",
        "prompt self-repetition 0.5 >= 0.25",
        "1 request on the lane <= 1",
        "because",
    )
    assert (decision.plan, decision.rule) == (Plan("ngram", 4), "all")


@pytest.mark.parametrize(
    ("when", "held", "missed"),
    [
        ({"temperature": {"min": 0.5, "max": 0.5}}, {"temperature": 0.5}, {"temperature": 0.51}),
        ({"temperature": {"min": 0.5}}, {"temperature": 2.0}, {"temperature": 0.49}),
        ({"prompt_tokens": {"max": 9}}, {"num_prompt_tokens": 9}, {"num_prompt_tokens": 10}),
        ({"self_repetition": {"min": 0.2}}, {"self_repetition": 0.2}, {"self_repetition": 0.1}),
        ({"tasks": ["rag"]}, {"task": "rag"}, {"task": "chat"}),
    ],
)
def test_bounds_are_inclusive(when: dict[str, Any], held: dict[str, Any], missed: dict[str, Any]) -> None:
    """A value on the bound holds; when no rule holds the plan is off, by no rule."""
    policies = one_workload({"name": "hit", "when": when, "drafter": "ngram", "k": 4, "reason": "r"})
    assert decide(policies, features(**held)).rule == "hit"
    none = decide(policies, features(**missed))
    assert (none.plan, none.rule, none.reasons[-1]) == (OFF, RULE_NONE, "no rule of workload only holds")


ALONE = {"name": "alone", "when": {"requests": {"max": 0}}, "drafter": "ngram", "k": 5, "reason": "r"}
LATER = {"name": "later", "drafter": "ngram", "k": 1, "reason": "r"}


def test_unknown_load_is_not_idle() -> None:
    """A rule about load is passed over while the load is unknown, and the reasons say so."""
    decision = decide(one_workload(ALONE, LATER), features(), None)
    assert (decision.rule, decision.load) == ("later", None)
    assert decision.reasons[1] == "the lane's load is unknown, so these rules do not apply: alone"


def test_stale_load_is_unknown() -> None:
    """A reading counts up to the file's age limit, and not after; the answer still reports it."""
    policies = one_workload(ALONE, LATER, load_max_age_s=5)
    assert decide(policies, features(), lane(0, read_at_s=95.0)).rule == "alone"
    stale = decide(policies, features(), lane(0, read_at_s=94.9))
    assert (stale.rule, stale.load) == ("later", lane(0, read_at_s=94.9))
    assert "5.1 s old (> 5 s)" in stale.reasons[1]


def test_unknown_load_is_no_reason_where_another_condition_fails() -> None:
    """Reasons mention the load only for rules that it alone kept from deciding."""
    hot_alone = {**ALONE, "when": {"requests": {"max": 0}, "temperature": {"min": 1.0}}}
    assert decide(one_workload(hot_alone, LATER), features()).reasons[1:] == ("r",)


def test_waiting_requests_count() -> None:
    """A queue is load too."""
    assert decide(one_workload(ALONE, LATER), features(), LaneLoad(0, 1, 64, 100.0)).rule == "later"


@pytest.mark.parametrize("hints", [{"off": True}, {"drafter": "off"}, {"k": 0}])
def test_off_is_never_speculated(hints: dict[str, Any]) -> None:
    """The request's word is final, and the only reason."""
    for task in TASKS:
        decision = decide(SHIPPED, features(task), lane(0), **hints)
        assert (decision.plan, decision.rule) == (OFF, "request")
        assert decision.reasons == ("the request turned speculation off",)


@pytest.mark.parametrize(
    ("rule", "hints", "plan"),
    [
        (LATER, {"k": 7}, Plan("ngram", 7)),
        (LATER, {"drafter": "ngram"}, Plan("ngram", 1)),
        (LATER, {"drafter": "ngram", "k": 7}, Plan("ngram", 7)),
        ({"name": "no", "off": True, "reason": "r"}, {"k": 7}, Plan("ngram", 7)),
        ({"name": "no", "off": True, "reason": "r"}, {"drafter": "ngram"}, Plan("ngram", 9)),
        (ALONE, {"drafter": "ngram"}, Plan("ngram", 9)),
    ],
)
def test_request_overrides_the_rule(rule: dict[str, Any], hints: dict[str, Any], plan: Plan) -> None:
    """What the request leaves open comes from the rule, or from the file where the rule has nothing to say."""
    decision = decide(one_workload(rule, default_k=9), features(), None, **hints)
    assert (decision.plan, decision.rule) == (plan, "request")
    assert decision.reasons[-1].startswith("the request fixed ")


PREDICTED = features(has_prediction=True)


@pytest.mark.parametrize(
    ("rule", "hints", "plan", "name"),
    [
        (LATER, {}, Plan("prediction", 8), "prediction"),
        (LATER, {"k": 3}, Plan("prediction", 3), "prediction"),
        (LATER, {"drafter": "ngram"}, Plan("ngram", 1), "request"),
        (LATER, {"drafter": "prediction"}, Plan("prediction", 1), "request"),
        (LATER, {"off": True}, OFF, "request"),
        ({"name": "no", "off": True, "reason": "r"}, {}, OFF, "no"),
        ({"name": "no", "off": True, "reason": "r"}, {"k": 3}, Plan("prediction", 3), "prediction"),
    ],
)
def test_a_prediction_is_the_draft_of_a_speculated_request(
    rule: dict[str, Any], hints: dict[str, Any], plan: Plan, name: str
) -> None:
    """It takes the place of the drafter that nobody fixed, and never turns on what was turned off."""
    decision = decide(one_workload(rule), PREDICTED, **hints)
    assert (decision.plan, decision.rule) == (plan, name)
    assert ("carries a prediction" in decision.reasons[-1]) is (name == "prediction")


bounds = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)


def ranges(scale: float) -> st.SearchStrategy[dict[str, float]]:
    both = bounds.map(lambda pair: {"min": pair[0] * scale, "max": pair[1] * scale})
    return both | bounds.map(lambda pair: {"max": pair[1] * scale})


tasks = st.lists(st.sampled_from(TASKS), min_size=1, max_size=3)
whens = st.dictionaries(st.just("tasks"), tasks, min_size=1) | st.fixed_dictionaries(
    {"temperature": ranges(0.1)},
    optional={
        "requests": bounds.map(lambda pair: {"min": pair[0], "max": pair[1]}),
        "self_repetition": ranges(0.05),
        "prompt_tokens": bounds.map(lambda pair: {"max": pair[1]}),
    },
)
actions = st.integers(1, MAX_K).map(lambda k: {"drafter": "ngram", "k": k}) | st.just({"off": True})
rules = st.lists(st.tuples(whens, actions), min_size=1, max_size=5).map(
    lambda pairs: [{"name": f"r{i}", "when": when, "reason": "r", **act} for i, (when, act) in enumerate(pairs)]
)
hint_values = st.fixed_dictionaries(
    {}, optional={"k": st.integers(0, MAX_K), "task": st.sampled_from(TASKS), "drafter": st.just("ngram")}
).filter(lambda values: not (values.get("k") == 0 and "drafter" in values))


@given(
    rules,
    st.builds(
        features,
        task=st.sampled_from(TASKS),
        temperature=st.floats(0, 2),
        self_repetition=st.floats(0, 1),
        num_prompt_tokens=st.integers(0, 100_000),
    ),
    hint_values,
    st.none() | st.builds(lane, st.integers(0, 50), st.floats(0, 100)),
)
@settings(max_examples=200, deadline=None)
def test_any_policy_decides_any_request(
    rule_list: list[dict[str, Any]], found: Features, hints: dict[str, Any], load: LaneLoad | None
) -> None:
    """Every valid policy gives every request a plan and reasons; the first rule whose conditions hold is the one."""
    decision = decide(one_workload(*rule_list), found, load, **hints)
    assert decision.reasons
    assert decision.features == found
    if "k" in hints:
        assert decision.plan.k == hints["k"]
    elif "drafter" in hints:
        assert not decision.plan.is_off
    else:
        chosen = next((rule for rule in rule_list if rule["name"] == decision.rule), {})
        assert decision.plan.k == chosen.get("k", 0)
