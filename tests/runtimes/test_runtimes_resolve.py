from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import DRAFTERS, MAX_K
from outrider.errors import InvalidRequest
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.runtimes.abilities import Abilities, KRange, Surface
from outrider.runtimes.lane import Lane, ModelCard
from outrider.runtimes.resolve import nearest, resolve

EVERYTHING = frozenset(Surface)
SAMPLED = {Surface.TEMPERATURE: "temperature"}
MIN_P = SAMPLED | {Surface.MIN_P: "min_p"}


def lane(name, drafters=None, *, off=True, surfaces=EVERYTHING, in_flight=0):
    one = Lane(name, f"http://{name}")
    ranges = {drafter: KRange(*ks) for drafter, ks in (drafters or {}).items()}
    one.becomes_ready([ModelCard("m", {"id": "m"})], Abilities(ranges, off, frozenset(surfaces)))
    one.num_in_flight = in_flight
    return one


PLAIN = lane("plain")
STOCK = lane("stock", {"ngram": (7, 7)}, off=False, surfaces={Surface.TEMPERATURE})
OBEDIENT = lane("obedient", {"ngram": (1, 7)}, surfaces={Surface.TEMPERATURE, Surface.SEED})
EAGLE = lane("eagle", {"eagle2": (3, 3)}, off=False, surfaces={Surface.TEMPERATURE})
EMBEDDED = lane("embedded", {"ngram": (1, 16), "suffix": (1, 16)})


@pytest.mark.parametrize(
    ("plan", "lanes", "expected"),
    [
        (Plan("ngram", 3), [PLAIN, STOCK, OBEDIENT], (OBEDIENT, Plan("ngram", 3))),
        (Plan("ngram", 3), [PLAIN, STOCK], (STOCK, Plan("ngram", 7))),
        (Plan("ngram", 9), [STOCK, EMBEDDED], (EMBEDDED, Plan("ngram", 9))),
        (Plan("suffix", 5), [PLAIN, EAGLE, OBEDIENT], (OBEDIENT, Plan("ngram", 5))),
        (Plan("medusa", 5), [PLAIN, OBEDIENT, EAGLE], (EAGLE, Plan("eagle2", 3))),
        (Plan("eagle2", 3), [PLAIN, OBEDIENT], (OBEDIENT, Plan("ngram", 3))),
        (Plan("eagle2", 3), [PLAIN], (PLAIN, PLAN_OFF)),
        (PLAN_OFF, [STOCK, PLAIN], (PLAIN, PLAN_OFF)),
        (PLAN_OFF, [STOCK, OBEDIENT], (OBEDIENT, PLAN_OFF)),
        (PLAN_OFF, [STOCK, EAGLE], (EAGLE, Plan("eagle2", 3))),
    ],
)
def test_the_nearest_lane_runs_its_nearest_plan(plan, lanes, expected):
    """The same drafter, then one like it, then another, then none; and a reason if it differs."""
    found = resolve(plan, SAMPLED, lanes)
    assert (found.lane, found.plan) == expected
    assert bool(found.reasons) == (found.plan != plan)


def test_the_law_comes_before_the_plan():
    """min_p goes to a lane that honours it, even without the drafter; the reason says so."""
    found = resolve(Plan("ngram", 3), MIN_P, [OBEDIENT, STOCK, PLAIN])
    assert (found.lane, found.plan) == (PLAIN, PLAN_OFF)
    assert found.reasons == (
        "the plan was ngram with k 3, lane plain runs off: the lanes that could do not honour all of the sampling",
    )


def test_a_law_that_nobody_honours_is_said_or_refused():
    """In the reasons; or, when the workload is exact, by an error that names the field."""
    found = resolve(Plan("ngram", 3), MIN_P, [OBEDIENT, STOCK])
    assert found.lane is OBEDIENT
    assert found.reasons == ("no lane honours min_p exactly; lane obedient comes nearest",)
    with pytest.raises(InvalidRequest, match="min_p: the workload is exact") as refused:
        resolve(Plan("ngram", 3), MIN_P, [OBEDIENT, STOCK], is_exact=True)
    assert refused.value.param == "min_p"
    assert resolve(Plan("ngram", 3), MIN_P, [OBEDIENT, PLAIN], is_exact=True).lane is PLAIN


def test_of_equals_the_one_with_the_fewest_requests():
    """And the first of those."""
    a, b, c = (lane(name, {"ngram": (1, 7)}, in_flight=count) for name, count in (("a", 2), ("b", 1), ("c", 1)))
    assert resolve(Plan("ngram", 3), {}, [a, b, c]).lane is b


abilities = st.builds(
    lambda ks, off: Abilities(ks, off or not ks, EVERYTHING),
    st.dictionaries(
        st.sampled_from(DRAFTERS),
        st.tuples(st.integers(1, MAX_K), st.integers(1, MAX_K)).map(lambda p: KRange(*sorted(p))),
    ),
    st.booleans(),
)
plans = st.one_of(st.just(PLAN_OFF), st.builds(Plan, st.sampled_from(DRAFTERS), st.integers(1, MAX_K)))


@given(plans, abilities)
def test_the_effective_plan_is_one_that_the_lane_has(plan, able):
    """Whatever is asked of whatever lane; and what it can do as asked, it does."""
    distance, effective = nearest(plan, able)
    if effective.is_off:
        assert able.can_be_off
    else:
        ks = able.drafters[effective.drafter]
        assert ks.min <= effective.k <= ks.max
    assert (distance == (0, 0)) == (effective == plan)
