"""Any policy files, any lanes, any requests: a decision that can be run, or a refusal for a reason."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_world import NOW_S, features, toy_cost, view

from outrider.core import DRAFTERS, MAX_K, SURFACES, TASKS, DrafterAbility, Hints, LaneAbility
from outrider.errors import InvalidRequest
from outrider.policy.decide import Origin, PolicySet
from outrider.policy.decision import RULES
from outrider.policy.limits import WorkloadPolicy
from outrider.policy.loader import Source, load_policies
from outrider.policy.plan import LEARNERS

shares, ks = st.floats(0, 1), st.integers(1, MAX_K)


def limits_of(drafter: str) -> st.SearchStrategy[dict[str, Any]]:
    """Of one drafter; only some can be told not to learn."""
    optional = {"prior": shares, **({"learn": st.booleans()} if drafter in LEARNERS else {})}
    bounds = st.tuples(ks, ks).map(lambda pair: {"min_k": min(pair), "max_k": max(pair)})
    return st.tuples(bounds, st.fixed_dictionaries({}, optional=optional)).map(lambda pair: pair[0] | pair[1])


def bands(scale: float) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Ascending, the last one open or not."""
    pairs = st.lists(st.tuples(st.integers(0, 20), st.integers(0, MAX_K)), max_size=3, unique_by=lambda pair: pair[0])
    closed = pairs.map(lambda found: [{"max": bound * scale, "max_k": k} for bound, k in sorted(found)])
    return st.tuples(closed, st.just([]) | st.just([{"max_k": 2}])).map(lambda pair: pair[0] + pair[1])


KEYS: dict[str, st.SearchStrategy[Any]] = {
    "description": st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=9),
    "match": st.fixed_dictionaries(
        {"tasks": st.just(list(TASKS))},
        optional={"models": st.just(["m"]), "tenants": st.just(["t"]), "headers": st.just({"X-Tier": "gold"})},
    ),
    "task": st.sampled_from(TASKS),
    "exact": st.booleans(),
    "temperature": bands(0.1),
    "load": bands(1),
    "objective": st.sampled_from([{"tpot_ms": 10.0}, {"deadline_s": 2.0}]),
    "shares": st.fixed_dictionaries({}, optional={"high": shares, "normal": shares, "low": shares}),
    "exploration": st.just({"share": 0.2, "control": 0.2}),
    "fallback": st.sampled_from(["nearest", "refuse"]),
    "hedge_after_ms": st.just(50.0),
    "trial": st.builds(
        lambda mode, share: {"workload": "next", "mode": mode, "share": share},
        st.sampled_from(["canary", "shadow"]),
        st.sampled_from([0.5, 1.0]),
    ),
    "load_max_age_s": st.just(5.0),
}
drafters = st.lists(st.sampled_from(DRAFTERS), max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: limits_of(name) for name in names})
)
files = st.fixed_dictionaries({"drafters": drafters}, optional=KEYS)
abilities = st.lists(
    st.builds(
        DrafterAbility,
        st.sampled_from(DRAFTERS),
        st.lists(ks, min_size=1, max_size=4, unique=True).map(lambda found: tuple(sorted(found))),
        st.booleans(),
        st.none() | st.integers(1, 5000),
        is_shared=st.booleans(),
    ),
    max_size=3,
    unique_by=lambda ability: ability.drafter,
).map(tuple)
surfaces = st.sampled_from([SURFACES, SURFACES - {"temperature", "json_schema"}])
lanes = st.builds(
    lambda found, has_plain, served, exact, knee: LaneAbility(
        "", found, has_plain or not found, served, exact, cost=toy_cost(knee=knee)
    ),
    abilities, st.booleans(), surfaces, surfaces, st.sampled_from([8, 256]),
)  # fmt: skip
worlds = st.lists(st.tuples(lanes, st.none() | st.integers(0, 60)), min_size=1, max_size=3)
requests = st.builds(
    features,
    task=st.sampled_from(TASKS),
    is_task_given=st.booleans(),
    temperature=st.floats(0, 2),
    dry_run=shares,
    num_prompt_tokens=st.integers(0, 100_000),
    has_prediction=st.booleans(),
    priority=st.integers(-1, 1),
    tenant=st.none() | st.just("t"),
    max_tokens=st.none() | st.integers(1, 1000),
    surfaces=st.lists(st.sampled_from(["temperature", "json_schema"]), max_size=2, unique=True),
)
hints = st.one_of(
    st.fixed_dictionaries({}, optional={"k": ks, "drafter": st.sampled_from(DRAFTERS), "exact": st.booleans()}),
    st.sampled_from([{"off": True}, {"k": 0}, {"drafter": "off"}]),
)


def loaded(*found: dict[str, Any]) -> PolicySet:
    """Through YAML, as an operator's files come."""
    with tempfile.TemporaryDirectory() as folder:
        for file, name in zip(found, ("only", "next"), strict=True):
            text = yaml.safe_dump({"version": 1, "workload": name} | file, allow_unicode=True, sort_keys=False)
            (Path(folder) / f"{name}.yaml").write_text(text, encoding="utf-8")
        return load_policies(Source([Path(folder)], "only"))


def test_any_key_is_drawn() -> None:
    """None is left out of what follows."""
    assert {*KEYS, "version", "workload", "drafters"} == WorkloadPolicy.model_fields.keys()


@given(
    files,
    st.fixed_dictionaries({"drafters": drafters}),
    worlds,
    st.lists(st.tuples(requests, hints), min_size=1, max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_any_policy_decides_any_request(file: Any, other: Any, world: Any, asked: Any) -> None:
    """With a plan that the named lane can run, within the limits unless the request fixed it, and with reasons; what
    turned speculation off is never speculated."""
    policies = loaded(file, other)
    views = [view(ability, num) for ability, num in world]
    for found, values in asked:
        given_hints = Hints(**values)
        try:
            decision = policies.decide(found, given_hints, views, NOW_S, Origin("m", {"x-tier": "gold"}))
        except InvalidRequest as error:
            is_asked = "is exact" in error.message or file.get("fallback") == "refuse"
            has_plain = all(ability.has_plain for ability, _ in world)
            assert error.param and (is_asked or "not serve" in error.message or not has_plain), error.message
            continue
        plan, ability = decision.plan, decision.option.lane
        assert any(ability is one for one, _ in world) and decision.rule in RULES and decision.reasons
        assert plan.is_off or not given_hints.is_off
        if not plan.is_off:
            assert any(d.drafter == plan.drafter and plan.k in d.ks for d in ability.drafters)
            if decision.rule not in ("request", "nearest", "no-plain"):
                bounds = policies.policy(decision.workload).drafters[plan.drafter]
                assert bounds.min_k <= plan.k <= bounds.max_k
