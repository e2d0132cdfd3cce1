"""What a request may run on a lane at all, asked before anything is optimised: predicates with reason codes."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.core import DrafterAbility, LaneAbility, Surface
from outrider.policy.features import Features

#: Of a drafter that is left out for what it has shown.
NOT_PAYING = "not-paying"
#: Reason codes, and the sentence that answers show.
REASONS = {
    "not-served": "the lane does not serve {detail}",
    "not-exact": "the lane does not honour {detail} exactly",
    "context": "the prompt is longer than the {detail} tokens that the drafter was made for",
    "no-prediction": "the request carries no prediction",
    "shared-store": "the drafter learns from all tenants, and the request belongs to one",
    "not-allowed": "the workload does not allow the drafter here",
    "no-k": "the lane has no k between {detail}",
    NOT_PAYING: "it has not paid for such requests, or not surely enough while the workload is behind plain decoding",
}


def unserved(ability: LaneAbility, surfaces: Iterable[Surface]) -> tuple[Surface, ...]:
    """What of it the lane does not serve at all."""
    return tuple(surface for surface in surfaces if surface not in ability.surfaces)


def inexact(ability: LaneAbility, surfaces: Iterable[Surface]) -> tuple[Surface, ...]:
    """What of it the lane does not honour exactly."""
    return tuple(surface for surface in surfaces if surface not in ability.exact)


def drafter_refusal(ability: DrafterAbility, features: Features) -> tuple[str, str] | None:
    """Why this drafter must not be used for the request; None when it may."""
    if ability.drafter == "prediction" and not features.has_prediction:
        return "no-prediction", ""
    if ability.is_shared and features.tenant is not None:
        return "shared-store", ""
    if ability.max_context is not None and features.num_prompt_tokens > ability.max_context:
        return "context", str(ability.max_context)
    return None
