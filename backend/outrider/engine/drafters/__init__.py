"""Drafters of the embedded engine, behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.policy.plan import Plan
from outrider.speculation.proposal import PointMass


class Drafter(Protocol):
    """Proposes tokens for one sequence. It sees every committed token in order, and nothing that was rejected."""

    def observe(self, token_id: int) -> None:
        """A token was committed."""

    def propose(self, k: int) -> PointMass:
        """At most `k` tokens to follow the committed ones; empty when it has no idea."""


def make_drafter(plan: Plan, prompt_ids: Sequence[int]) -> Drafter | None:
    """The plan's drafter, having seen the prompt; None when the plan is off."""
    if plan.is_off:
        return None
    from outrider.engine.drafters.ngram import NgramDrafter

    return {"ngram": NgramDrafter}[plan.drafter](prompt_ids)
