"""A kind of requests: those that the policy cannot tell apart, and what is remembered for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outrider.core import MAX_K, LaneAbility
from outrider.policy.acceptance import Curve
from outrider.policy.features import Features
from outrider.policy.incumbent import Incumbent
from outrider.policy.limits import WorkloadPolicy
from outrider.policy.options import Menu, Prices, Row
from outrider.policy.priors import Cell

#: Length of an answer whose request names no limit.
_USUAL_TOKENS = 256


@dataclass(slots=True)
class Kind:
    """Requests that the policy cannot tell apart, and what is known of their drafts."""

    policy: WorkloadPolicy
    features: Features
    """Of the first of them."""
    drafter: str | None
    """What the request itself fixes."""
    k: int | None
    floor: float
    """Acceptance that a dry run on the prompt has shown, rounded down to a quarter."""
    cap: float
    """Largest k at this temperature."""
    context: int
    reach: int | None
    """The least context of any drafter that holds its prompt; None where none is known to be bounded above it."""
    cell: Cell
    """Of no drafter; each has its own."""
    place: tuple[Any, ...] = field(init=False)
    """The cell's last fields, which all drafters share."""
    held: tuple[object, ...] = field(init=False)
    """By what it is remembered which plan was taken last."""
    is_fixed: bool = field(init=False)
    """The request's own word stands above the workload's limits and needs no gain."""
    most: int = field(init=False)
    """The largest k of any of its plans."""
    stamp: int = -1
    curves: dict[tuple[str, bool], tuple[int, Curve]] = field(default_factory=dict)
    """By drafter and whether it is sampled: the curve, and the stamp of when it was worked out."""
    latest: list[Row] = field(default_factory=list)
    """What the lanes could do when it was last asked."""
    moved: list[str] = field(default_factory=list)
    """Drafters whose curves have moved, in the order in which they did."""
    menus: dict[tuple[object, ...], Menu] = field(default_factory=dict)
    prices: dict[tuple[LaneAbility, tuple[object, ...]], Prices] = field(default_factory=dict)
    """By lane and menu."""
    rows: dict[tuple[LaneAbility, int, int, int], Row] = field(default_factory=dict)
    lanes: list[LaneAbility] = field(default_factory=list)
    incumbents: list[Incumbent] = field(default_factory=list)
    """The plans that were taken last on these lanes, of loads far from each other, the last asked first: load around
    a bound between two stays with that one. Shared with kinds that are held alike."""
    shut: frozenset[str] = frozenset()
    """Drafters that do not pay for it."""
    shut_at: tuple[int, bool] = (0, False)
    """How many gates had changed, and whether its ledger was overdrawn, when that was found."""

    def __post_init__(self) -> None:
        cell, features = self.cell, self.features
        self.place = cell[2:]
        priority = (features.priority > 0) - (features.priority < 0)
        bounds = priority, features.tenant is None, (*features.surfaces,), self.reach
        self.held = (self.policy.workload, cell.task, cell.temperature, self.floor, features.has_prediction, *bounds)
        self.is_fixed = self.drafter is not None or self.k is not None
        limits = self.policy.drafters.values()
        self.most = MAX_K if self.is_fixed else max((one.max_k for one in limits), default=0)

    @property
    def fixed(self) -> str:
        """What the request fixed, in the words of answers."""
        names = ([self.drafter] if self.drafter else []) + ([f"k {self.k}"] if self.k else [])
        return " with ".join(names)

    @property
    def target_rate(self) -> float | None:
        """Tokens per second that are enough; None means the most."""
        objective = self.policy.objective
        if objective is None:
            return None
        if objective.tpot_ms is not None:
            return 1000 / objective.tpot_ms
        return (self.features.max_tokens or _USUAL_TOKENS) / (objective.deadline_s or 1.0)

    @property
    def share(self) -> float:
        """The share of the k that the request's priority leaves it beside other requests."""
        shares, priority = self.policy.shares, self.features.priority
        return shares.high if priority > 0 else shares.low if priority < 0 else shares.normal
