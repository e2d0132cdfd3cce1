"""Eligibility: what no drafter may be used for, whatever it would gain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_world import decide, features, lane, only, view

from outrider.core import SURFACES, DrafterAbility, LaneAbility
from outrider.errors import InvalidRequest

ANY = {"draft_model": {"max_k": 5}, "prediction": {"max_k": 8}, "ngram": {"max_k": 5}}
GREEDY = lane("argmax", exact=SURFACES - {"temperature", "min_p"})
HOT = features("quote", 0.7, surfaces=("temperature",))


def codes(policies, found, *views):
    return {refusal.code for refusal in decide(policies, found, *views).refused}


def test_the_law_comes_before_speed() -> None:
    """A lane that honours more of it is taken, even without a drafter; the others are named with what they lack."""
    plain = LaneAbility("plain", ())
    decision = decide(only(drafters=ANY), HOT, view(GREEDY), view(plain))
    assert (decision.lane, decision.plan.is_off) == ("plain", True)
    assert [(r.lane, r.code, r.detail) for r in decision.refused] == [("argmax", "not-exact", "temperature")]
    assert decide(only(drafters=ANY), features("quote"), view(GREEDY), view(plain)).lane == "argmax"


def test_a_law_that_nobody_honours_is_said_or_refused() -> None:
    """In the reasons; or, when the workload or the request is exact, by an error that names the field."""
    found = features("quote", 0.7, surfaces=("temperature", "min_p"))
    loose = decide(only(drafters=ANY), found, view(GREEDY), view(lane("seeds", exact=SURFACES - {"min_p"})))
    assert loose.lane == "seeds" and not loose.plan.is_off
    assert loose.reasons[-1] == "no lane honours min_p exactly; lane seeds comes nearest"
    with pytest.raises(InvalidRequest, match="min_p: the workload is exact") as refused:
        decide(only(drafters=ANY, exact=True), found, view(lane("seeds", exact=SURFACES - {"min_p"})))
    assert refused.value.param == "min_p"
    with pytest.raises(InvalidRequest, match="min_p: the request is exact"):
        decide(only(drafters=ANY), found, view(lane("seeds", exact=SURFACES - {"min_p"})), exact=True)
    exact = decide(only(drafters=ANY, exact=True), found, view(GREEDY), view(lane("good")))
    assert exact.lane == "good"


def test_what_no_lane_serves_is_refused() -> None:
    """A 400 that names the field; a lane that serves it is taken."""
    text_only = lane("text", surfaces=SURFACES - {"images"})
    seen = features(surfaces=("images",))
    with pytest.raises(InvalidRequest, match="text: the lane does not serve images") as refused:
        decide(only(), seen, view(text_only))
    assert refused.value.param == "images"
    assert decide(only(), seen, view(text_only), view(lane("both"))).lane == "both"


def test_a_grammar_goes_to_a_lane_that_knows_its_kind() -> None:
    """Others of the same lane run where they always do; an adapter, too, goes to a lane that has some."""
    ours = lane("ours", surfaces=SURFACES - {"structural_tag", "lora"})
    other = view(lane("other"), 3)
    for surface, expected in (("json_schema", "ours"), ("structural_tag", "other"), ("lora", "other")):
        assert decide(only(drafters=ANY), features("quote", surfaces=(surface,)), view(ours), other).lane == expected


def test_a_drafter_is_not_used_beyond_its_context() -> None:
    """Its limit counts, to the token."""
    head = LaneAbility("one", (DrafterAbility("draft_model", (3,), max_context=2000),))
    policies = only(drafters=ANY)
    assert decide(policies, features("quote", num_prompt_tokens=2000), view(head)).plan.k == 3
    beyond = decide(policies, features("quote", num_prompt_tokens=2001), view(head))
    assert beyond.plan.is_off
    assert "context" in {refusal.code for refusal in beyond.refused}


def test_a_lane_that_must_speculate_does_so_beyond_its_context() -> None:
    """That costs speed and no exactness; another lane that may is taken first. What would cost more is refused."""
    far, policies = features("quote", num_prompt_tokens=2001), only(drafters=ANY)
    made = DrafterAbility("draft_model", (3,), max_context=2000)
    stuck = view(LaneAbility("stuck", (made,), has_plain=False))
    decision = decide(policies, far, stuck)
    assert (decision.lane, decision.plan.k, decision.rule) == ("stuck", 3, "no-plain")
    assert decide(policies, far, stuck, view(lane("able", "ngram", has_plain=False), 40)).lane == "able"
    shared = view(LaneAbility("one", (DrafterAbility("ngram", (3,), is_shared=True),), has_plain=False))
    with pytest.raises(InvalidRequest, match=r"no lane can run without speculation, .* the request belongs to one"):
        decide(policies, replace(far, tenant="t"), shared)


def test_a_prediction_needs_one() -> None:
    """And is taken when the request carries one, being the better draft."""
    policies, ability = only(drafters=ANY), LaneAbility.embedded("one")
    assert decide(policies, features("chat", has_prediction=True), view(ability)).plan.drafter == "prediction"
    assert "no-prediction" in codes(policies, features("chat"), view(ability))


def test_a_tenants_request_stays_out_of_shared_stores() -> None:
    """What it says must not be proposed to others."""
    shared = LaneAbility("one", (DrafterAbility("ngram", (3,), is_shared=True),))
    policies = only(drafters=ANY)
    assert decide(policies, features("quote"), view(shared)).plan.k == 3
    assert codes(policies, replace(features("quote"), tenant="t"), view(shared)) == {"shared-store"}
