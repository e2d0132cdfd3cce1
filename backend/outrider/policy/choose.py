"""What is possible: for each lane and drafter the k that is expected to write most tokens per second.

Requests of one kind ask the same, so their answers are remembered by lane and load until data changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import truediv
from typing import Any

from outrider.core import MAX_K, OFF, DrafterAbility, LaneAbility, LaneView
from outrider.policy.acceptance import LOOK_UPS, Cell, Curve, length_bucket, steps_at_most, temperature_bucket
from outrider.policy.eligibility import drafter_refusal, inexact, unserved
from outrider.policy.features import Features
from outrider.policy.learning import Learner
from outrider.policy.limits import Band, WorkloadPolicy
from outrider.policy.options import Entry, Menu, Row
from outrider.policy.rounds import RELIEF, TIGHT, context_bucket, occupancy, pressure

#: Kinds of requests, and menus of one kind, that are remembered.
_MAX_KINDS, _MAX_ROWS = 4096, 1024


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
    cell: Cell
    """Of no drafter; each has its own."""
    place: tuple[Any, ...] = field(init=False)
    """The cell's last fields, which all drafters share."""
    held: tuple[object, ...] = field(init=False)
    """By what it is remembered which plan was taken last."""
    is_fixed: bool = field(init=False)
    """The request's own word stands above the workload's limits and needs no gain."""
    stamp: int = -1
    curves: dict[tuple[str, bool], tuple[int, Curve]] = field(default_factory=dict)
    """By drafter and whether it is sampled: the curve, and the stamp of when it was worked out."""
    latest: list[Row] = field(default_factory=list)
    """What the lanes could do when it was last asked."""
    moved: list[str] = field(default_factory=list)
    """Drafters whose curves have moved, in the order in which they did."""
    menus: dict[tuple[object, ...], Menu] = field(default_factory=dict)
    rows: dict[tuple[LaneAbility, int, int, int], Row] = field(default_factory=dict)
    shut: frozenset[str] = frozenset()
    """Drafters that do not pay for it."""
    shut_at: tuple[int, bool] = (0, False)
    """How many gates had changed, and whether its ledger was overdrawn, when that was found."""

    def __post_init__(self) -> None:
        cell, features = self.cell, self.features
        self.place = cell[2:]
        bounds = (features.priority > 0) - (features.priority < 0), features.tenant is None, (*features.surfaces,)
        self.held = (self.policy.workload, cell.task, cell.temperature, self.floor, features.has_prediction, *bounds)
        self.is_fixed = self.drafter is not None or self.k is not None

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


#: Length of an answer whose request names no limit.
_USUAL_TOKENS = 256


class Surveyor:
    """Remembers kinds of requests, and finds what is possible for them."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._kinds: dict[tuple[object, ...], Kind] = {}

    def kind(self, policy: WorkloadPolicy, features: Features, drafter: str | None, k: int | None) -> Kind:
        """The kind of a request."""
        floor = int(features.dry_run * 4) / 4
        heat = temperature_bucket(features.temperature)
        cap = _cap(policy.temperature, features.temperature)
        tokens, priority = features.num_prompt_tokens, features.priority
        context, length = context_bucket(tokens), length_bucket(tokens)
        key = (
            policy.workload, features.task, heat, length, features.tenant, floor, cap, context, (*features.surfaces,),
            features.has_prediction, priority and (1 if priority > 0 else -1),
            features.max_tokens if policy.objective is not None else None, drafter, k,
        )  # fmt: skip
        found = self._kinds.get(key)
        if found is None:
            if len(self._kinds) >= _MAX_KINDS:
                self._kinds.clear()
            cell = Cell(OFF, False, heat, features.task, length, features.tenant)
            found = self._kinds[key] = Kind(policy, features, drafter, k, floor, cap, context, cell)
        if found.stamp != self._learner.acceptance.stamp(found.place):
            self._refresh(found)
        return found

    def follow(self, kind: Kind) -> None:
        """Work out what was learnt for this kind, so that its next request need not wait for that."""
        while kind.stamp != self._learner.acceptance.stamp(kind.place):
            self._refresh(kind)
        kind.latest = [self._followed(kind, row) for row in kind.latest]

    def _followed(self, kind: Kind, row: Row) -> Row:
        if row.source.now is not row.factors or row.version != len(kind.moved):
            row = kind.rows[row.key] = self._renewed(kind, row, row.num_tokens)
        return row

    def _refresh(self, kind: Kind) -> None:
        """Take in what was learnt of one drafter for this kind, the others at the next decisions, so that none takes
        long; what follows from it is kept where the curve has hardly moved."""
        acceptance = self._learner.acceptance
        for key, (stamp, curve) in kind.curves.items():
            if stamp != acceptance.stamp((key[0], *kind.place)):
                del kind.curves[key]
                if self.curve(kind, key[0], is_sampled=key[1]).is_near(curve):
                    kind.curves[key] = (kind.curves[key][0], curve)
                else:
                    kind.moved.append(key[0])
                return
        kind.stamp = acceptance.stamp(kind.place)

    def rows(self, kind: Kind, features: Features, lanes: Sequence[LaneView], now_s: float) -> list[Row]:
        """What each lane can do for a request of this kind, in the order of the lanes."""
        remembered, version, num_tokens = kind.rows, len(kind.moved), features.num_prompt_tokens
        if len(remembered) >= _MAX_ROWS or version >= _MAX_ROWS:
            remembered.clear()
            kind.menus.clear()
            kind.moved.clear()
            version = 0
        oldest_s = now_s - kind.policy.load_max_age_s
        kind.latest = rows = []
        for view in lanes:
            ability, load = view.ability, view.load
            if load is None or load.read_at_s < oldest_s:
                key = (ability, -1, 0, 0)
            else:
                usage = load.token_usage
                tight = 0 if usage is None or usage < TIGHT else pressure(usage)
                key = (ability, load.num_running + load.num_waiting, load.max_running, tight)
            row = remembered.get(key)
            if row is None:
                row = remembered[key] = self._row(kind, key, num_tokens)
            elif (
                row.source.now is not row.factors
                or row.version != version
                or (row.is_bounded and row.num_tokens != num_tokens)
            ):
                row = remembered[key] = self._renewed(kind, row, num_tokens)
            rows.append(row)
        return rows

    def _renewed(self, kind: Kind, row: Row, num_tokens: int) -> Row:
        """With all that is known now."""
        menu = self._current(kind, row.menu.key)
        source = self._learner.rounds.factors(row.lane, menu.batch)
        return Row(row.key, row.seen, menu, source, row.unserved, row.inexact, num_tokens)

    def _row(self, kind: Kind, remembered_by: tuple[LaneAbility, int, int, int], num_tokens: int) -> Row:
        ability, seen = remembered_by[0], occupancy(*remembered_by)
        others = seen.num_others
        cap = min(kind.cap, _cap(kind.policy.load, others))
        caps = (cap, RELIEF[seen.pressure] * (kind.share if others else 1.0))
        batch = seen.batch
        key = (id(ability.drafters), id(ability.cost), batch, *caps)
        if key in kind.menus:
            menu = self._current(kind, key)
        else:
            menu = kind.menus[key] = self._menu(kind, ability, key, (batch, caps))
        source, surfaces = self._learner.rounds.factors(ability, batch), kind.features.surfaces
        lacks = (unserved(ability, surfaces), inexact(ability, surfaces)) if surfaces else ((), ())
        return Row(remembered_by, seen, menu, source, *lacks, num_tokens)

    def _current(self, kind: Kind, key: tuple[object, ...]) -> Menu:
        """A menu with what moved since it was made."""
        menu = kind.menus[key]
        if menu.version == len(kind.moved):
            return menu
        by_drafter = dict(menu.by_drafter)
        for drafter in set(kind.moved[menu.version :]):
            old = by_drafter.get(drafter)
            if old is not None:
                by_drafter[drafter] = self._entry(kind, menu.like, old.place, (menu.batch, old.ks))
        kind.menus[key] = menu = menu._replace(
            entries=tuple(by_drafter.values()), by_drafter=by_drafter, version=len(kind.moved)
        )
        return menu

    def _menu(
        self, kind: Kind, ability: LaneAbility, key: tuple[object, ...], scene: tuple[int, tuple[float, float]]
    ) -> Menu:
        batch, caps = scene
        plain_rate = 1 / self._learner.rounds.plain_s(ability, batch, kind.context)
        entries: list[Entry] = []
        refused: list[tuple[str, str, str]] = []
        for index, drafter in enumerate(ability.drafters):
            refusal = drafter_refusal(drafter, kind.features)
            bounds = _fixed_bounds(kind, drafter) if kind.is_fixed else _bounds(kind, drafter.drafter, caps)
            if bounds is None:
                refusal = "not-allowed", ""
            elif refusal is None:
                ks = tuple(k for k in drafter.ks if bounds[0] <= k <= bounds[1])
                if ks:
                    entries.append(self._entry(kind, ability, index, (batch, ks)))
                    continue
                refusal = "no-k", f"{bounds[0]} and {bounds[1]}"
            refused.append((drafter.drafter, *refusal))
        is_bounded = any(entry.drafter.max_context is not None for entry in entries)
        by_drafter = {entry.drafter.drafter: entry for entry in entries}
        return Menu(
            plain_rate, tuple(entries), tuple(refused), ability, by_drafter, is_bounded, batch, key, len(kind.moved)
        )

    def _entry(self, kind: Kind, ability: LaneAbility, index: int, scene: tuple[int, tuple[int, ...]]) -> Entry:
        """The best of these k of one drafter; `scene` is the batch and them."""
        drafter = ability.drafters[index]
        batch, ks = scene
        curve = self.curve(kind, drafter.drafter, is_sampled=drafter.is_sampled)
        times, depth = (batch, kind.context), steps_at_most(drafter, kind.cell)
        seconds = self._learner.rounds.round_s(ability, drafter.drafter, times, curve.fill, depth)
        rates = tuple(map(truediv, curve.tokens, seconds))
        k = max(ks, key=rates.__getitem__)
        return Entry(index, drafter, k, rates[k], ks, rates)

    def curve(self, kind: Kind, drafter: str, *, is_sampled: bool) -> Curve:
        """What is known of a drafter's acceptance for this kind of request."""
        key = (drafter, is_sampled)
        found = kind.curves.get(key)
        if found is not None:
            return found[1]
        limits = kind.policy.limits_of(drafter)
        first = None if limits is None else limits.prior
        floor = kind.floor if drafter in LOOK_UPS else 0.0
        cell = kind.cell._replace(drafter=drafter, is_sampled=is_sampled)
        acceptance = self._learner.acceptance
        curve = acceptance.curve(cell, first, floor)
        kind.curves[key] = (acceptance.stamp((drafter, *cell[2:])), curve)
        return curve


def _fixed_bounds(kind: Kind, drafter: DrafterAbility) -> tuple[int, int]:
    """Least and largest k where the request's own word stands above the limits; without such a k the nearest."""
    limits = kind.policy.limits_of(drafter.drafter)
    least, most = 1, MAX_K if limits is None else limits.max_k
    if kind.k is not None:
        least = most = kind.k
    if any(least <= k <= most for k in drafter.ks):
        return least, most
    near = min(drafter.ks, key=lambda k: abs(k - most))
    return near, near


def _bounds(kind: Kind, drafter: str, caps: tuple[float, float]) -> tuple[int, int] | None:
    """Least and largest k; None when the drafter is not allowed here."""
    limits = kind.policy.limits_of(drafter)
    if limits is None:
        return None
    cap, share = caps
    most = int(min(limits.max_k * share, cap))
    return (limits.min_k, most) if most >= limits.min_k else None


def _cap(bands: Sequence[Band], value: float) -> float:
    """The largest k of the first band that reaches the value; without bands any."""
    if not bands:
        return MAX_K
    for band in bands:
        if band.max is None or value <= band.max:
            return band.max_k
    return 0
