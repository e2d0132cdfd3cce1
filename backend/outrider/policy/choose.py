"""What is possible: for each lane and drafter the k that is expected to write most tokens per second.

Requests of one kind ask the same, so their answers are remembered by lane and load until data changes them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import replace
from operator import truediv

from outrider.core import MAX_K, OFF, DrafterAbility, LaneAbility, LaneView
from outrider.policy.acceptance import Curve
from outrider.policy.eligibility import drafter_refusal, inexact, unserved
from outrider.policy.features import Features
from outrider.policy.kind import Kind
from outrider.policy.learning import Learner
from outrider.policy.limits import Band, WorkloadPolicy
from outrider.policy.options import Entry, Menu, Prices, Row
from outrider.policy.priors import LOOK_UPS, Cell, length_bucket, steps_at_most, temperature_bucket
from outrider.policy.rounds import RELIEF, TIGHT, context_bucket, occupancy, pressure

#: Kinds of requests, and menus of one kind, that are remembered.
_MAX_KINDS, _MAX_ROWS = 4096, 1024
#: Rows that one decision brings up to date, so that none takes long; the others it takes as they were when they were
#: last asked, and its answer brings them up to date.
_MAX_BEHIND = 4


class Surveyor:
    """Remembers kinds of requests, and finds what is possible for them."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._kinds: dict[tuple[object, ...], Kind] = {}
        self._contexts: list[int] = []
        """Tokens that drafters were made for, as far as they are bounded, ascending: requests on two sides of one are
        of different kinds."""

    def kind(self, policy: WorkloadPolicy, features: Features, drafter: str | None, k: int | None) -> Kind:
        """The kind of a request."""
        floor = int(features.dry_run * 4) / 4
        heat = temperature_bucket(features.temperature)
        cap = _cap(policy.temperature, features.temperature)
        tokens, priority = features.num_prompt_tokens, features.priority
        context, length, reach = context_bucket(tokens), length_bucket(tokens), self._reach(tokens)
        key = (
            policy.workload, features.task, heat, length, features.tenant, floor, cap, context, reach,
            (*features.surfaces,), features.has_prediction, priority and (1 if priority > 0 else -1),
            features.max_tokens if policy.objective is not None else None, drafter, k,
        )  # fmt: skip
        found = self._kinds.get(key)
        if found is None:
            if len(self._kinds) >= _MAX_KINDS:
                self._kinds.clear()
            cell = Cell(OFF, False, heat, features.task, length, features.tenant)
            found = self._kinds[key] = Kind(policy, features, drafter, k, floor, cap, context, reach, cell)
        if found.stamp != self._learner.acceptance.stamp(found.place):
            self._refresh(found)
        return found

    def _reach(self, num_tokens: int) -> int | None:
        place = bisect_left(self._contexts, num_tokens)
        return self._contexts[place] if place < len(self._contexts) else None

    def _note(self, ability: LaneAbility) -> None:
        """Of a lane that is new: kinds are made anew that its drafters' contexts cut in two, or of whose drafters its
        cards say more."""
        known = self._learner.acceptance.accuracy
        for drafter in ability.drafters:
            if drafter.accuracy and drafter.drafter not in known:
                known[drafter.drafter] = drafter.accuracy
                self._kinds.clear()
            if drafter.max_context is not None and drafter.max_context not in self._contexts:
                insort(self._contexts, drafter.max_context)
                self._kinds.clear()

    def follow(self, kind: Kind) -> None:
        """Work out what was learnt for this kind, so that its next request need not wait for that."""
        while kind.stamp != self._learner.acceptance.stamp(kind.place):
            self._refresh(kind)
        epoch = self._epoch(kind)
        kind.latest = [row if row.epoch == epoch else self._followed(kind, row, epoch) for row in kind.latest]

    def _epoch(self, kind: Kind) -> int:
        """Grows with every change that some row of this kind may have to follow."""
        return len(kind.moved) + self._learner.rounds.num_changes

    def _followed(self, kind: Kind, row: Row, epoch: int) -> Row:
        prices = self._priced(kind, row.lane, row.prices.menu.key)
        if prices is not row.prices:
            row = kind.rows[row.key] = row.at(prices)
        row.epoch = epoch
        return row

    def _refresh(self, kind: Kind) -> None:
        """Take in what was learnt of one drafter for this kind, the others at the next decisions, so that none takes
        long; what follows from it is kept where the curve has hardly moved."""
        acceptance = self._learner.acceptance
        for key, (stamp, curve) in kind.curves.items():
            if stamp != acceptance.stamp((key[0], *kind.place)):
                del kind.curves[key]
                if self.curve(kind, key[0], is_sampled=key[1]).is_near(curve, kind.most):
                    kind.curves[key] = (kind.curves[key][0], curve)
                else:
                    kind.moved.append(key[0])
                return
        kind.stamp = acceptance.stamp(kind.place)

    def rows(self, kind: Kind, features: Features, lanes: Sequence[LaneView], now_s: float) -> list[Row]:
        """What each lane can do for a request of this kind, in the order of the lanes."""
        remembered = kind.rows
        if len(remembered) >= _MAX_ROWS or len(kind.moved) >= _MAX_ROWS:
            for kept in (remembered, kind.menus, kind.prices, kind.moved):
                kept.clear()
        epoch, oldest_s = self._epoch(kind), now_s - kind.policy.load_max_age_s
        kind.latest = rows = []
        num_behind = 0
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
                row = remembered[key] = self._row(kind, features, key)
                row.epoch = epoch
            elif row.epoch != epoch and num_behind < _MAX_BEHIND:
                num_behind += 1
                row = self._followed(kind, row, epoch)
            rows.append(row)
        return rows

    def _row(self, kind: Kind, features: Features, remembered_by: tuple[LaneAbility, int, int, int]) -> Row:
        ability, seen = remembered_by[0], occupancy(*remembered_by)
        others = seen.num_others
        cap = min(kind.cap, _cap(kind.policy.load, others))
        caps = (cap, RELIEF[seen.pressure] * (kind.share if others else 1.0))
        batch = seen.batch
        key = (id(ability.drafters), id(ability.cost), batch, *caps)
        if key not in kind.menus:
            self._note(ability)
            kind.menus[key] = self._menu(kind, features, ability, key, (batch, caps))
        surfaces = features.surfaces
        lacks = (unserved(ability, surfaces), inexact(ability, surfaces)) if surfaces else ((), ())
        return Row(remembered_by, seen, self._priced(kind, ability, key), *lacks)

    def _priced(self, kind: Kind, ability: LaneAbility, key: tuple[object, ...]) -> Prices:
        """With all that is known now."""
        found = kind.prices.get((ability, key))
        if found is None or found.version != len(kind.moved) or found.source.now is not found.factors:
            menu = self._current(kind, key)
            factors = self._learner.rounds.factors(ability, menu.batch)
            found = kind.prices[ability, key] = Prices(menu, factors, ability.has_plain)
        return found

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
        kind.menus[key] = menu = replace(
            menu, entries=tuple(by_drafter.values()), by_drafter=by_drafter, version=len(kind.moved)
        )
        return menu

    def _menu(
        self,
        kind: Kind,
        features: Features,
        ability: LaneAbility,
        key: tuple[object, ...],
        scene: tuple[int, tuple[float, float]],
    ) -> Menu:
        batch, caps = scene
        plain_rate = 1 / self._learner.rounds.plain_s(ability, batch, kind.context)
        entries: list[Entry] = []
        refused: list[tuple[str, str, str]] = []
        for index, drafter in enumerate(ability.drafters):
            refusal = drafter_refusal(drafter, features)
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
        by_drafter = {entry.drafter.drafter: entry for entry in entries}
        return Menu(plain_rate, tuple(entries), tuple(refused), ability, by_drafter, batch, key, len(kind.moved))

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
