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


def test_what_the_verifier_does_not_honour_is_not_speculated_on_that_lane() -> None:
    """Another lane that does honour it is taken, and without one the plain decoding of the same lane."""
    alone = decide(only(drafters=ANY), HOT, view(GREEDY))
    assert alone.plan.is_off and {r.code for r in alone.refused} == {"not-exact"}
    both = decide(only(drafters=ANY), HOT, view(GREEDY), view(lane("good")))
    assert (both.lane, both.plan.drafter) == ("good", "draft_model")
    assert not decide(only(drafters=ANY), features("quote"), view(GREEDY)).plan.is_off


def test_a_workload_may_give_up_exactness_and_says_so() -> None:
    """Only with `exact: false`."""
    assert not decide(only(drafters=ANY, exact=False), HOT, view(GREEDY)).plan.is_off


def test_what_no_lane_serves_is_refused() -> None:
    """A 400 that names what is missing; a lane that serves it is taken."""
    text_only = lane("text", surfaces=SURFACES - {"images"})
    seen = features(surfaces=("images",))
    with pytest.raises(InvalidRequest, match="text: the lane does not serve images"):
        decide(only(), seen, view(text_only))
    assert decide(only(), seen, view(text_only), view(lane("both"))).lane == "both"


def test_a_drafter_is_not_used_beyond_its_context() -> None:
    """Its limit counts, to the token."""
    head = LaneAbility("one", (DrafterAbility("draft_model", (3,), max_context=2000),))
    policies = only(drafters=ANY)
    assert decide(policies, features("quote", num_prompt_tokens=2000), view(head)).plan.k == 3
    beyond = decide(policies, features("quote", num_prompt_tokens=2001), view(head))
    assert beyond.plan.is_off
    assert "context" in {refusal.code for refusal in beyond.refused}


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
