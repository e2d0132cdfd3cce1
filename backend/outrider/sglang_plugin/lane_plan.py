"""The plan that a request carries in `custom_params.outrider`: what a lane can honour, what a request may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.algorithms import DRAFTER_OF

OFF = "off"
_KEY = "outrider"


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """What this lane was launched with."""

    drafter: str
    max_k: int
    """Most drafts that can be accepted per step; 0 when the lane does not speculate."""

    @classmethod
    def of(cls, server_args: Any) -> LaneLimits:
        """From SGLang's own arguments, after it filled in what was not given."""
        algorithm = server_args.speculative_algorithm
        if algorithm is None:
            return cls(OFF, 0)
        if algorithm == "NGRAM":
            return cls(DRAFTER_OF[algorithm], server_args.speculative_num_draft_tokens - 1)
        return cls(DRAFTER_OF.get(algorithm, str(algorithm).lower()), server_args.speculative_num_steps)

    def check(self, custom_params: Mapping[str, Any] | None) -> None:
        """ValueError names the field of the plan that this lane cannot honour."""
        plan = (custom_params or {}).get(_KEY)
        if plan is None:
            return
        where = f"custom_params.{_KEY}"
        if not isinstance(plan, Mapping):
            raise ValueError(f"{where} must be an object, not {plan!r}")
        unknown = sorted(set(plan) - {"drafter", "k"})
        if unknown:
            raise ValueError(f"{where}: unknown key {unknown[0]!r}, expected drafter and k")
        k, drafter = plan.get("k"), plan.get("drafter")
        if not isinstance(k, int) or isinstance(k, bool) or not 0 <= k <= self.max_k:
            raise ValueError(f"{where}.k must be an integer between 0 and {self.max_k} on this lane, not {k!r}")
        if (k == 0) != (drafter == OFF):
            raise ValueError(f"{where}.k is 0 exactly when the drafter is {OFF!r}, not k={k} with {drafter!r}")
        if drafter not in (OFF, self.drafter):
            raise ValueError(f"{where}.drafter must be {self.drafter!r} or {OFF!r} on this lane, not {drafter!r}")


def caps(requests: Iterable[Any], max_k: int) -> list[int]:
    """Most drafts that each of SGLang's requests may have accepted in a step; all there are without a plan."""
    return [min(_k(request.sampling_params.custom_params, max_k), max_k) for request in requests]


def _k(custom_params: Mapping[str, Any] | None, default: int) -> int:
    plan = (custom_params or {}).get(_KEY)
    k = plan.get("k") if isinstance(plan, Mapping) else None
    # What is no plan was refused before; should that ever fail, the lane must not.
    return k if isinstance(k, int) and k >= 0 else default
