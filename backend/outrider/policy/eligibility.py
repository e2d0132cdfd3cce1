"""What a request may run on a lane at all, asked before anything is optimised: predicates with reason codes."""

from __future__ import annotations

from outrider.core import DrafterAbility, LaneAbility
from outrider.policy.features import Features

#: Reason codes, and the sentence that answers show.
REASONS = {
    "not-served": "the lane does not serve {detail}",
    "not-exact": "the lane's verifier does not honour {detail} exactly",
    "no-plain": "the lane cannot run without speculation",
    "context": "the prompt is longer than the {detail} tokens that the drafter was made for",
    "no-prediction": "the request carries no prediction",
    "shared-store": "the drafter learns from all tenants, and the request belongs to one",
    "not-allowed": "the workload does not allow the drafter here",
    "no-k": "the lane has no k between {detail}",
    "no-gain": "no k of it gains enough over plain decoding",
    "gated": "it was slower than plain decoding when last measured",
}


def lane_refusal(ability: LaneAbility, features: Features) -> tuple[str, str] | None:
    """Why no plan of this lane can serve the request, as code and detail; None when one may."""
    missing = [surface for surface in features.surfaces if surface not in ability.surfaces]
    return ("not-served", ", ".join(missing)) if missing else None


def speculation_refusal(ability: LaneAbility, features: Features, *, is_exact: bool) -> tuple[str, str] | None:
    """Why this lane must not speculate for the request; None when it may."""
    if not is_exact:
        return None
    missing = [surface for surface in features.surfaces if surface not in ability.exact]
    return ("not-exact", ", ".join(missing)) if missing else None


def drafter_refusal(ability: DrafterAbility, features: Features) -> tuple[str, str] | None:
    """Why this drafter must not be used for the request; None when it may."""
    if ability.drafter == "prediction" and not features.has_prediction:
        return "no-prediction", ""
    if ability.is_shared and features.tenant is not None:
        return "shared-store", ""
    return None
