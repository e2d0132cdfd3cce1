"""What a request fixes: on the nearest lane, with its nearest plan, and a reason when that is another one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_world import decide, features, only, view

from outrider.core import DRAFTERS, MAX_K, SURFACES, DrafterAbility, LaneAbility
from outrider.errors import InvalidRequest
from outrider.policy.plan import PLAN_OFF, Plan

SAMPLED = ("temperature",)
MIN_P = (*SAMPLED, "min_p")


def lane(name: str, ks: dict[str, Any] | None = None, *, off: bool = True, lacks: Any = ()) -> LaneAbility:
    drafters = tuple(DrafterAbility(drafter, tuple(range(*r))) for drafter, r in (ks or {}).items())
    return LaneAbility(name, drafters, has_plain=off, exact=SURFACES - set(lacks))


PLAIN = lane("plain")
STOCK = lane("stock", {"ngram": (7, 8)}, off=False, lacks=("min_p", "seed"))
OBEDIENT = lane("obedient", {"ngram": (1, 8)}, lacks=("min_p",))
EAGLE = lane("eagle", {"eagle2": (3, 4)}, off=False, lacks=("min_p", "seed"))
EMBEDDED = lane("embedded", {"ngram": (1, 17), "suffix": (1, 17)})


@pytest.mark.parametrize(
    ("hints", "lanes", "expected"),
    [
        ({"drafter": "ngram", "k": 3}, [PLAIN, STOCK, OBEDIENT], (OBEDIENT, Plan("ngram", 3))),
        ({"drafter": "ngram", "k": 3}, [PLAIN, STOCK], (STOCK, Plan("ngram", 7))),
        ({"drafter": "ngram", "k": 9}, [STOCK, EMBEDDED], (EMBEDDED, Plan("ngram", 9))),
        ({"drafter": "suffix", "k": 5}, [PLAIN, EAGLE, OBEDIENT], (OBEDIENT, Plan("ngram", 5))),
        ({"drafter": "medusa", "k": 5}, [PLAIN, OBEDIENT, EAGLE], (EAGLE, Plan("eagle2", 3))),
        ({"drafter": "hybrid", "k": 5}, [PLAIN, OBEDIENT, EAGLE], (EAGLE, Plan("eagle2", 3))),
        ({"drafter": "hybrid", "k": 5}, [PLAIN, OBEDIENT], (OBEDIENT, Plan("ngram", 5))),
        ({"drafter": "eagle2", "k": 3}, [PLAIN, OBEDIENT], (OBEDIENT, Plan("ngram", 3))),
        ({"drafter": "eagle2", "k": 3}, [PLAIN], (PLAIN, PLAN_OFF)),
        ({"k": 4}, [PLAIN, EAGLE, OBEDIENT], (OBEDIENT, Plan("ngram", 4))),
        ({"k": 4}, [PLAIN, EAGLE], (EAGLE, Plan("eagle2", 3))),
        ({"drafter": "eagle2"}, [OBEDIENT, EAGLE], (EAGLE, Plan("eagle2", 3))),
    ],
)
def test_the_nearest_lane_runs_its_nearest_plan(hints: Any, lanes: Any, expected: Any) -> None:
    """The same drafter, then one like it, then another, then none; and a reason if it differs."""
    decision = decide(only(), features("quote", 0.7, surfaces=SAMPLED), *map(view, lanes), **hints)
    assert (decision.option.lane, decision.plan) == expected
    is_just_that = decision.plan.k == hints.get("k", 3) and decision.plan.drafter == hints.get("drafter", "ngram")
    assert decision.rule == ("request" if is_just_that else "nearest")
    assert any("the plan was" in reason for reason in decision.reasons) != is_just_that


def test_the_law_comes_before_the_plan() -> None:
    """min_p goes to a lane that honours it, even without the drafter; the reason says so."""
    found = features("quote", 0.7, surfaces=MIN_P)
    decision = decide(only(), found, *map(view, [OBEDIENT, STOCK, PLAIN]), drafter="ngram", k=3)
    assert (decision.lane, decision.plan) == ("plain", PLAN_OFF)
    assert decision.reasons[3] == (
        "the plan was ngram with k 3, lane plain runs off: the lanes that could do not honour all of the sampling"
    )


def test_a_workload_may_refuse_what_is_only_near() -> None:
    """And the error says what was fixed."""
    with pytest.raises(InvalidRequest, match="no lane can run ngram with k 3") as refused:
        decide(only(fallback="refuse"), features("quote"), view(STOCK), drafter="ngram", k=3)
    assert refused.value.param == "outrider"
    assert decide(only(fallback="refuse"), features("quote"), view(STOCK), drafter="ngram", k=7).plan.k == 7


def test_of_equals_the_emptiest_and_of_those_the_first() -> None:
    """By the load of lanes that run the same as fast."""
    a, b, c = (lane(name, {"ngram": (1, 8)}) for name in "abc")
    assert decide(only(), features("quote"), view(a, 2), view(b, 1), view(c, 1), drafter="ngram", k=3).lane == "b"


def test_lanes_that_must_speculate_do_so_as_little_as_they_can() -> None:
    """Where the workload allows nothing that they have and the request did not say off."""
    decision = decide(only(drafters={}), features("quote"), view(STOCK), view(EAGLE))
    assert (decision.lane, decision.plan, decision.rule) == ("eagle", Plan("eagle2", 3), "no-plain")


abilities = st.builds(
    lambda drafters, off: LaneAbility("one", drafters, has_plain=off or not drafters),
    st.lists(
        st.builds(
            lambda drafter, ends: DrafterAbility(drafter, tuple(range(min(ends), max(ends) + 1))),
            st.sampled_from([drafter for drafter in DRAFTERS if drafter != "prediction"]),
            st.tuples(st.integers(1, MAX_K), st.integers(1, MAX_K)),
        ),
        unique_by=lambda ability: ability.drafter,
        max_size=4,
    ).map(tuple),
    st.booleans(),
)


@given(st.sampled_from(DRAFTERS), st.integers(1, MAX_K), abilities)
def test_the_plan_is_one_that_the_lane_has(drafter: Any, k: int, able: LaneAbility) -> None:
    """Whatever is asked of whatever lane; and what it can do as asked, it does."""
    decision = decide(only(), features("quote"), view(able), drafter=drafter, k=k)
    ks = {(one.drafter, k) for one in able.drafters for k in one.ks}
    plan = decision.plan
    assert able.has_plain if plan.is_off else (plan.drafter, plan.k) in ks
    assert (decision.rule == "request") == ((drafter, k) in ks) == (plan == Plan(drafter, k))
