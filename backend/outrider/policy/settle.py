"""From what is possible to what is taken: gain over plain, drafters that do not pay, hysteresis, and tries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from outrider.policy.choose import Surveyor
from outrider.policy.incumbent import Incumbent
from outrider.policy.kind import Kind
from outrider.policy.learning import Gate, Learner, Ledger
from outrider.policy.nearest import distance, nearest
from outrider.policy.options import EQUAL, Option, Row

#: Speculation must be expected to gain this much over plain decoding: below it, it is noise.
MIN_GAIN = 1.03
#: Of the best plan's speed, what a try of a larger k must be expected to keep.
_LITTLE = 0.9
#: Kinds of requests whose plans are remembered.
_MAX_HELD = 4096


class Settled(NamedTuple):
    """The option that is taken, and the code of why."""

    option: Option
    rule: str


class Settler:
    """Remembers per kind of request what was taken last."""

    def __init__(self, learner: Learner, surveyor: Surveyor) -> None:
        self.learner = learner
        self.surveyor = surveyor
        self._incumbents: dict[tuple[object, ...], list[Incumbent]] = {}
        """Of one kind at loads far from each other, the last asked first: load around a bound between two stays with
        that one."""

    def settle(self, kind: Kind, rows: Sequence[Row], *, is_run: bool = True) -> Settled | None:
        """None when no lane decodes plainly and no drafter is allowed.

        What is not run leaves no trace: it is not counted, tries nothing, and what was taken last stays.
        """
        if kind.is_fixed:
            found = nearest(kind, rows)
            return None if found is None else Settled(found, "nearest" if any(distance(kind, found)) else "request")
        ledger = self.learner.ledger(kind.policy.workload)
        ledger.num_decided += is_run
        shut = self._shut(kind, ledger)
        plain, best = _leaders(rows, shut)
        if plain is None:
            best = _leaders(rows, frozenset())[1]
            return None if best is None else Settled(best, "no-plain")
        enough = _enough(kind, rows, plain, shut)
        if enough is not None:
            return Settled(enough, "objective")
        rule = "best-rate"
        if best is None:
            best, rule = plain, "no-drafter"
        elif best.rate < plain.rate * MIN_GAIN:
            best, rule = plain, "plain"
        held = self._held(kind, rows, (plain, best), shut, is_run=is_run)
        if held.k != best.k or held.drafter != best.drafter:
            rule = "held"
        tried = self._try(kind, rows, (plain, held), ledger) if is_run else None
        return tried or Settled(held, rule)

    def _shut(self, kind: Kind, ledger: Ledger) -> frozenset[str]:
        """Drafters that do not pay as far as is known; with an overdrawn ledger all that are not known to pay."""
        state = (self.learner.num_changes, ledger.is_overdrawn)
        if state != kind.shut_at:
            kind.shut_at, is_overdrawn = state, ledger.is_overdrawn
            gates = [(drafter, self._gate(kind, drafter)) for drafter in kind.policy.drafters]
            shut = frozenset(
                [name for name, gate in gates if gate.is_closed or (is_overdrawn and not gate.is_proven)]
            )
            if shut != kind.shut:
                kind.shut = shut
        return kind.shut

    def _gate(self, kind: Kind, drafter: str) -> Gate:
        return self.learner.gate(kind.policy.workload, drafter, kind.cell)

    def _held(
        self, kind: Kind, rows: Sequence[Row], known: tuple[Option, Option], shut: Collection[str], *, is_run: bool
    ) -> Option:
        """The best of plain and best option, unless the one taken last is nearly as good."""
        plain, best = known
        if not best.seen.is_known:
            return best
        found, batch = self._incumbents_of(kind, rows), best.seen.batch
        for place, incumbent in enumerate(found):
            if incumbent.is_near(batch):
                if place and is_run:
                    found.insert(0, found.pop(place))
                break
        else:
            if is_run:
                found.insert(0, Incumbent(best.drafter, best.k, batch))
            return best
        if not is_run:
            incumbent = replace(incumbent)
        if incumbent.drafter == best.drafter and incumbent.k == best.k:
            return incumbent.settle(best, best)
        if not incumbent.k:
            return incumbent.settle(best, plain)
        return incumbent.settle(best, _held_option(rows, incumbent, shut))

    def _incumbents_of(self, kind: Kind, rows: Sequence[Row]) -> list[Incumbent]:
        """A lane that is away says nothing of what to take when it is back."""
        lanes = [row.lane for row in rows]
        if lanes != kind.lanes:
            if len(self._incumbents) >= _MAX_HELD:
                self._incumbents.clear()
            key = (*kind.held, frozenset([id(lane.drafters) for lane in lanes]))
            kind.lanes, kind.incumbents = lanes, self._incumbents.setdefault(key, [])
        return kind.incumbents

    def _try(self, kind: Kind, rows: Sequence[Row], known: tuple[Option, Option], ledger: Ledger) -> Settled | None:
        """Now and then plain instead of speculation, or a drafter that is not the best known; within the limits."""
        limits = kind.policy.exploration
        plain, best = known
        # Where speculation gains much a plain answer costs much, so there are fewer: the share is one of time.
        control = limits.control * plain.rate / best.rate
        if best.k:
            ledger.control_due += control
            if ledger.control_due >= 1:
                ledger.control_due -= 1
                return Settled(plain, "control")
        if not limits.share or ledger.num_decided < ledger.next_try + 1 / limits.share or not ledger.may_try:
            return None
        # An opportunity that nothing is due for is lost: tries are at most this share of requests at any time.
        ledger.next_try = ledger.num_decided
        rates = self._drawn_rates(kind, rows, self._due(kind, best, ledger))
        taken = max(rates, key=rates.__getitem__, default=None)
        if taken is None:
            option = _longer(rows, best)
            gate = None if option is None else self._longer_gate(kind, option, best)
        else:
            option, gate = _option_of(rows, taken), self._gate(kind, taken)
        if option is None or gate is None or gate.due > ledger.num_decided:
            return None
        gate.tried(ledger.num_decided)
        return Settled(option, "explore")

    def _longer_gate(self, kind: Kind, option: Option, best: Option) -> Gate:
        """One that pays becomes the best plan, and the next larger k has a gate of its own; when it is no longer the
        best, its tries start afresh."""
        workload, cell = kind.policy.workload, kind.cell
        self.learner.gates.pop((workload, best.drafter, cell.task, cell.temperature, best.k), None)
        return self.learner.gate(workload, option.drafter, cell, option.k)

    def _due(self, kind: Kind, best: Option, ledger: Ledger) -> list[str]:
        num, others = ledger.num_decided, [name for name in kind.policy.drafters if name != best.drafter]
        return [drafter for drafter in others if self._gate(kind, drafter).due <= num]

    def _drawn_rates(self, kind: Kind, rows: Sequence[Row], drafters: Collection[str]) -> dict[str, float]:
        """Thompson sampling: each drafter's best rate with hazards drawn from what is believed of them."""
        random, rates = self.learner.random, {}
        for name in drafters:
            all_rates = [row.prices.rates.get(name, 0.0) * row.share for row in rows]
            rate = max(all_rates)
            if rate:
                entry = rows[all_rates.index(rate)].prices.menu.by_drafter[name]
                curve = self.surveyor.curve(kind, name, is_sampled=entry.drafter.is_sampled)
                rates[name] = rate * curve.drawn(entry.k, random) / curve.tokens[entry.k]
        return rates


def _leaders(rows: Sequence[Row], shut: frozenset[str]) -> tuple[Option | None, Option | None]:
    """The fastest plain decoding and the fastest drafter that is not shut; of equals the emptiest lane's."""
    plain_rate = fastest_rate = 0.0
    for row in rows:
        if row.shut is not shut:
            row.rank(shut)
        if row.plain_rate > plain_rate:
            plain_rate = row.plain_rate
        if row.fastest_rate > fastest_rate:
            fastest_rate = row.fastest_rate
    plain_rate, fastest_rate = plain_rate * EQUAL, fastest_rate * EQUAL
    plain: Row | None = None
    fastest: Row | None = None
    for row in rows:
        if row.plain_rate >= plain_rate and (plain is None or row.num_others < plain.num_others):
            plain = row
        if row.fastest_rate >= fastest_rate and (fastest is None or row.num_others < fastest.num_others):
            fastest = row
    return plain.plain if plain and plain_rate else None, fastest.best if fastest else None


def plain_of(rows: Sequence[Row]) -> Option | None:
    """The fastest plain decoding."""
    row = _pick(rows, [row.plain_rate for row in rows])
    return None if row is None else row.plain


def _held_option(rows: Sequence[Row], held: Incumbent, shut: Collection[str]) -> Option | None:
    """The plan taken last, where it does best now; None when no lane can run it."""
    if held.drafter in shut:
        return None
    return _option_of(rows, held.drafter, held.k)


def _option_of(rows: Sequence[Row], drafter: str, k: int | None = None) -> Option | None:
    """A drafter where it does best, with one k or each lane's best."""
    plan = drafter, k
    row = _pick(rows, [row.prices.rate_of(plan) * row.share for row in rows])
    entry = None if row is None else row.prices.entry(drafter, k)
    return None if row is None or entry is None else row.option(entry, k)


def _longer(rows: Sequence[Row], best: Option) -> Option | None:
    """The best plan with the next larger k, where little is lost by it: what drafts beyond those that run are worth
    is but a guess."""
    row = next(row for row in rows if row.lane is best.lane)
    entry = row.prices.entry(best.drafter)
    k = None if entry is None else next((k for k in entry.ks if k > best.k), None)
    option = None if entry is None or k is None else row.option(entry, k)
    return option if option is not None and option.rate >= best.rate * _LITTLE else None


def _pick(rows: Sequence[Row], rates: list[float]) -> Row | None:
    """Of the lanes as good as the fastest the emptiest, and of those the first; None when none has a rate."""
    least = max(rates, default=0.0) * EQUAL
    if not least:
        return None
    picked: Row | None = None
    for row, rate in zip(rows, rates, strict=True):
        if rate >= least and (picked is None or row.num_others < picked.num_others):
            picked = row
    return picked


def _enough(kind: Kind, rows: Sequence[Row], plain: Option, shut: Collection[str]) -> Option | None:
    """The least drafts that reach the objective; None without one, or when nothing reaches it."""
    target = kind.target_rate
    if target is None:
        return None
    options = (row.option(entry, k) for row in rows for entry in row.usable(shut) for k in entry.ks)
    enough = (option for option in (plain, *options) if option.rate >= target)
    return min(enough, key=lambda option: (option.k, -option.rate), default=None)
