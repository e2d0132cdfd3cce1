"""Plans on lanes, and what they are expected to be worth: a lane's menu at its load, and the options it makes."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from outrider.core import OFF, DrafterAbility, LaneAbility
from outrider.policy.rounds import Occupancy


class Option(NamedTuple):
    """A plan on a lane, with the tokens per second that the request is expected to get."""

    rate: float
    spare: int
    """The other requests on the lane, negative: of equal rates the emptier lane is taken."""
    lane: LaneAbility
    drafter: str
    k: int
    seen: Occupancy
    is_sampled: bool = False

    @property
    def shown(self) -> str:
        """In the words of answers."""
        plan = f"{self.drafter} with k {self.k}" if self.k else "plain decoding"
        return f"{plan} on {self.lane.name}, {self.rate:.1f} tokens/s expected"


def order(option: Option) -> tuple[float, int]:
    """What options are compared by."""
    return option[:2]


class Refusal(NamedTuple):
    """Why a lane or a drafter of it was left out."""

    lane: str
    drafter: str | None
    code: str
    detail: str = ""


class Entry(NamedTuple):
    """The best k of one drafter, before the lane's corrections; `rates` are tokens per second by k."""

    place: int
    """Among the lane's drafters."""
    drafter: DrafterAbility
    k: int
    rate: float
    bounds: tuple[int, int]
    """Least and largest k that are allowed here now."""
    rates: tuple[float, ...]


class Menu(NamedTuple):
    """What lanes of one make can do at one load for one kind of request."""

    plain_rate: float
    entries: tuple[Entry, ...]
    refused: tuple[tuple[str, str, str], ...]
    """Drafter, code and detail."""
    like: LaneAbility
    """A lane of this make; keeps alive what the menu is remembered by."""
    is_bounded: bool
    """Some drafter was made for a bounded context."""


class Row(NamedTuple):
    """One lane at its load. `factors` are what rates are multiplied by: of plain decoding, then of each drafter."""

    lane: LaneAbility
    seen: Occupancy
    menu: Menu
    factors: tuple[float, ...]
    refusal: tuple[str, str] | None
    """Why the lane must not speculate for this request, or not serve it."""
    is_served: bool
    num_tokens: int
    """Of the prompt."""

    @property
    def share(self) -> float:
        """What waiting in the lane's queue leaves of the speed: the queue moves on as answers end."""
        return self.lane.max_running / (self.lane.max_running + self.seen.num_waiting)

    @property
    def plain_rate(self) -> float:
        """Tokens per second of plain decoding; 0 when the lane has none."""
        if not (self.is_served and self.lane.has_plain):
            return 0.0
        return self.menu.plain_rate * self.factors[0] * self.share

    @property
    def plain(self) -> Option:
        """Plain decoding on this lane."""
        return self._option(OFF, 0, self.plain_rate)

    def usable(self, shut: Collection[str] = ()) -> list[Entry]:
        """Without `shut` drafters, and without those that were made for less context than this prompt's."""
        if self.refusal is not None:
            return []
        return [
            entry
            for entry in self.menu.entries
            if entry.drafter.drafter not in shut
            and (entry.drafter.max_context is None or self.num_tokens <= entry.drafter.max_context)
        ]

    def best(self, shut: Collection[str]) -> tuple[float, Entry] | None:
        """The fastest of the usable ones, with its tokens per second."""
        if self.refusal is not None:
            return None
        best, best_rate, factors = None, 0.0, self.factors
        is_bounded = bool(shut) or self.menu.is_bounded
        for entry in self.usable(shut) if is_bounded else self.menu.entries:
            rate = entry[3] * factors[entry[0] + 1]
            if rate > best_rate:
                best, best_rate = entry, rate
        return None if best is None else (best_rate * self.share, best)

    def option(self, entry: Entry, k: int | None = None) -> Option:
        """An entry, with its own or another k."""
        k = entry.k if k is None else k
        rate = entry.rates[k] * self.factors[entry.place + 1] * self.share
        return self._option(entry.drafter.drafter, k, rate, entry.drafter.is_sampled)

    def _option(self, drafter: str, k: int, rate: float, is_sampled: bool = False) -> Option:
        return Option(rate, -self.seen.num_others, self.lane, drafter, k, self.seen, is_sampled)

    @property
    def refused(self) -> list[Refusal]:
        """The lane or drafters of it that were left out."""
        if self.refusal is not None:
            return [Refusal(self.lane.name, None, *self.refusal)]
        long = [(entry.drafter, entry.drafter.max_context) for entry in self.menu.entries]
        beyond = [
            (drafter.drafter, "context", str(limit))
            for drafter, limit in long
            if limit is not None and self.num_tokens > limit
        ]
        return [Refusal(self.lane.name, *refusal) for refusal in (*self.menu.refused, *beyond)]
