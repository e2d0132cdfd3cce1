"""The choice: over lanes, drafters and k, the plan that is expected to write most tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.core import MAX_K, OFF, DrafterAbility, LaneAbility, LaneView
from outrider.policy.acceptance import LOOK_UPS, Cell, Curve, length_bucket, temperature_bucket
from outrider.policy.eligibility import drafter_refusal, lane_refusal, speculation_refusal
from outrider.policy.features import Features
from outrider.policy.learning import Learner
from outrider.policy.limits import Band, BudgetShares, WorkloadPolicy
from outrider.policy.rounds import Occupancy, context_bucket, occupancy


class Option(NamedTuple):
    """A plan on a lane, with the tokens per second that the request is expected to get."""

    lane: LaneView
    drafter: str
    k: int
    rate: float
    seen: Occupancy

    bounds: tuple[int, int] = (0, 0)
    """Least and largest k that are allowed here now."""
    is_sampled: bool = False

    @property
    def key(self) -> tuple[str, bool]:
        """Of its cell and curve in a survey."""
        return self.drafter, self.is_sampled

    @property
    def shown(self) -> str:
        """In the words of answers."""
        plan = f"{self.drafter} with k {self.k}" if self.k else "plain decoding"
        return f"{plan} on {self.lane.ability.name}, {self.rate:.1f} tokens/s expected"


class Refusal(NamedTuple):
    """Why a lane or a drafter of it was left out."""

    lane: str
    drafter: str | None
    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One request, its workload, and what it fixes itself."""

    policy: WorkloadPolicy
    features: Features
    drafter: str | None
    k: int | None
    now_s: float

    @property
    def is_fixed(self) -> bool:
        """The request's own word stands above the workload's limits and needs no gain."""
        return self.drafter is not None or self.k is not None

    def target_rate(self) -> float | None:
        """Tokens per second that are enough; None means the most."""
        objective = self.policy.objective
        if objective is None:
            return None
        if objective.tpot_ms is not None:
            return 1000 / objective.tpot_ms
        return (self.features.max_tokens or 256) / (objective.deadline_s or 1.0)


@dataclass(slots=True)
class Survey:
    """All plans that are possible: the best of each drafter on each lane, and plain decoding."""

    plains: list[Option] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    cells: dict[tuple[str, bool], Cell] = field(default_factory=dict)
    curves: dict[tuple[str, bool], Curve] = field(default_factory=dict)
    floor: float = 0.0
    """Acceptance that a dry run on the prompt has shown, rounded down to a quarter."""
    context: int = 0
    """Bucket of the context's length."""


def survey(question: Question, lanes: Sequence[LaneView], learner: Learner) -> Survey:
    """Ask every lane and drafter."""
    policy, features = question.policy, question.features
    context = context_bucket(features.num_prompt_tokens)
    found = Survey(floor=int(features.dry_run * 4) / 4, context=context)
    cap = _cap(policy.temperature, features.temperature)
    for view in lanes:
        ability = view.ability
        refusal = lane_refusal(ability, features)
        if refusal is not None:
            found.refused.append(Refusal(ability.name, None, *refusal))
            continue
        seen = occupancy(view, question.now_s, policy.load_max_age_s)
        if ability.has_plain:
            plain_s = learner.rounds.forwards(ability, seen.num_running, context)[0]
            rate = _share(ability, seen) / (plain_s * learner.rounds.correction(ability.name))
            found.plains.append(Option(view, OFF, 0, rate, seen))
        refusal = speculation_refusal(ability, features, is_exact=policy.exact)
        if refusal is not None:
            found.refused.append(Refusal(ability.name, None, *refusal))
            continue
        lane_cap = min(cap, _cap(policy.load, seen.num_others))
        share = _share_of(policy.shares, features, seen)
        _ask_drafters(question, found, learner, _Place(view, seen, context, lane_cap, share))
    return found


class _Place(NamedTuple):
    """A lane in its present state, how many drafts the workload allows there now, and the request's share of them."""

    view: LaneView
    seen: Occupancy
    context: int
    cap: float
    share: float


def _ask_drafters(question: Question, found: Survey, learner: Learner, place: _Place) -> None:
    ability, seen = place.view.ability, place.seen
    share = _share(ability, seen)
    target = question.target_rate()
    for drafter in ability.drafters:
        bounds = _bounds(question, drafter, place)
        if isinstance(bounds, str):
            if bounds:
                found.refused.append(Refusal(ability.name, drafter.drafter, bounds))
            continue
        refusal = drafter_refusal(drafter, question.features)
        if refusal is not None:
            found.refused.append(Refusal(ability.name, drafter.drafter, *refusal))
            continue
        curve = _curve(question, found, learner, drafter)
        factor = share / learner.rounds.correction(ability.name, drafter.drafter)
        key = (ability, drafter.drafter, seen.num_running, place.context, bounds)
        best = curve.best.get(key)
        if best is None or target is not None:
            rates = rates_of(curve, learner, ability, drafter.drafter, (seen.num_running, place.context))
            ks = [k for k in drafter.ks if bounds[0] <= k <= bounds[1]]
            enough = [k for k in ks if target is not None and rates[k] * factor >= target]
            k = min(enough) if enough else max(ks, key=rates.__getitem__, default=0)
            best = (k, rates[k])
            if target is None:
                curve.best[key] = best
        if best[0]:
            rate = best[1] * factor
            option = Option(place.view, drafter.drafter, best[0], rate, seen, bounds, drafter.is_sampled)
            found.options.append(option)
        else:
            found.refused.append(Refusal(ability.name, drafter.drafter, "no-k", f"{bounds[0]} and {bounds[1]}"))


def rates_of(
    curve: Curve, learner: Learner, ability: LaneAbility, drafter: str, state: tuple[int, int]
) -> list[float]:
    """Entry k: tokens per second of one request, before correction; `state` is running requests and context."""
    key = (ability, drafter, state)
    found = curve.rates.get(key)
    if found is None:
        seconds = learner.rounds.round_s(ability, drafter, *state, curve.fill)
        found = curve.rates[key] = [n / s for n, s in zip(curve.tokens, seconds, strict=True)]
    return found


def _share(ability: LaneAbility, seen: Occupancy) -> float:
    """What waiting in the lane's queue leaves of the speed: the queue moves on as answers end."""
    return ability.max_running / (ability.max_running + seen.num_waiting)


def _bounds(question: Question, drafter: DrafterAbility, place: _Place) -> tuple[int, int] | str:
    """Least and largest k, or the reason code why there is none; empty when the question is of another drafter."""
    if question.drafter is not None and question.drafter != drafter.drafter:
        return ""
    limits = question.policy.limits_of(drafter.drafter)
    if question.k is not None:
        # A request that fixes k alone takes the workload's drafters, or any when it has none.
        is_open = question.drafter is not None or limits is not None or not question.policy.drafters
        return (question.k, question.k) if is_open else ""
    if question.drafter is not None:
        return (1, 5 if limits is None else limits.max_k)
    if limits is None:
        return "not-allowed"
    most = int(min(limits.max_k * place.share, place.cap))
    return (limits.min_k, most) if most >= limits.min_k else "not-allowed"


def _curve(question: Question, found: Survey, learner: Learner, drafter: DrafterAbility) -> Curve:
    key = (drafter.drafter, drafter.is_sampled)
    curve = found.curves.get(key)
    if curve is None:
        cell = cell_of(question.features, drafter.drafter, is_sampled=drafter.is_sampled)
        limits = question.policy.limits_of(drafter.drafter)
        first = None if limits is None else limits.prior
        floor = found.floor if drafter.drafter in LOOK_UPS else 0.0
        curve = found.curves[key] = learner.acceptance.curve(cell, first, floor)
        found.cells[key] = cell
    return curve


def cell_of(features: Features, drafter: str, *, is_sampled: bool) -> Cell:
    """Where the acceptance of this drafter for this request is kept."""
    return Cell(
        drafter,
        is_sampled,
        temperature_bucket(features.temperature),
        features.task,
        length_bucket(features.num_prompt_tokens),
        features.tenant,
    )


def _cap(bands: Sequence[Band], value: float) -> float:
    """The largest k of the first band that reaches the value; without bands any."""
    if not bands:
        return MAX_K
    return next((band.max_k for band in bands if band.max is None or value <= band.max), 0)


def _share_of(shares: BudgetShares, features: Features, seen: Occupancy) -> float:
    """The share of the k that the request's priority leaves it beside other requests."""
    if not seen.num_others:
        return 1.0
    return shares.high if features.priority > 0 else shares.low if features.priority < 0 else shares.normal
