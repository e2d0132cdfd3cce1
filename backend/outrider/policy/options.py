"""Plans on lanes, and what they are expected to be worth: a lane's menu at its load, and the options it makes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from outrider.core import OFF, DrafterAbility, LaneAbility, Surface
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


#: More than any number of surfaces.
UNSERVED = 99


@dataclass(slots=True)
class Row:
    """One lane at its load. `factors` are what rates are multiplied by: of plain decoding, then of each drafter."""

    lane: LaneAbility
    seen: Occupancy
    menu: Menu
    factors: tuple[float, ...]
    unserved: tuple[Surface, ...]
    """What of the request the lane does not serve at all."""
    inexact: tuple[Surface, ...]
    """What of the request the lane does not honour exactly."""
    num_tokens: int
    """Of the prompt."""
    plain_rate: float = field(init=False)
    """Tokens per second of plain decoding; 0 when the lane has none."""
    num_missing: int = field(init=False)
    """Surfaces that are not honoured; `UNSERVED` when some are not served."""
    fastest: tuple[float, Entry] | None = field(init=False)
    """Of all drafters, with its tokens per second."""

    def __post_init__(self) -> None:
        self.plain_rate = self.menu.plain_rate * self.factors[0] * self.share if self.lane.has_plain else 0.0
        self.num_missing = UNSERVED if self.unserved else len(self.inexact)
        self.fastest = self._fastest(self.usable())

    @property
    def share(self) -> float:
        """What waiting in the lane's queue leaves of the speed: the queue moves on as answers end."""
        return self.lane.max_running / (self.lane.max_running + self.seen.num_waiting)

    @property
    def plain(self) -> Option:
        """Plain decoding on this lane."""
        return self._option(OFF, 0, self.plain_rate)

    def usable(self, shut: Collection[str] = ()) -> list[Entry]:
        """Without `shut` drafters, and without those that were made for less context than this prompt's."""
        return [
            entry
            for entry in self.menu.entries
            if entry.drafter.drafter not in shut
            and (entry.drafter.max_context is None or self.num_tokens <= entry.drafter.max_context)
        ]

    def best(self, shut: Collection[str]) -> tuple[float, Entry] | None:
        """The fastest without `shut` drafters."""
        return self._fastest(self.usable(shut)) if shut else self.fastest

    def _fastest(self, entries: Iterable[Entry]) -> tuple[float, Entry] | None:
        rated = [(entry.rate * self.factors[entry.place + 1] * self.share, entry) for entry in entries]
        return max(rated, key=itemgetter(0), default=None)

    def option(self, entry: Entry, k: int | None = None) -> Option:
        """An entry, with its own or another k."""
        k = entry.k if k is None else k
        rate = entry.rates[k] * self.factors[entry.place + 1] * self.share
        return self._option(entry.drafter.drafter, k, rate, entry.drafter.is_sampled)

    def _option(self, drafter: str, k: int, rate: float, is_sampled: bool = False) -> Option:
        return Option(rate, -self.seen.num_others, self.lane, drafter, k, self.seen, is_sampled)

    @property
    def refusal(self) -> Refusal:
        """Of the whole lane, where others honour more of the request."""
        if self.unserved:
            return Refusal(self.lane.name, None, "not-served", ", ".join(self.unserved))
        return Refusal(self.lane.name, None, "not-exact", ", ".join(self.inexact))

    @property
    def refused(self) -> list[Refusal]:
        """Drafters of it that were left out."""
        long = [(entry.drafter, entry.drafter.max_context) for entry in self.menu.entries]
        beyond = [
            (drafter.drafter, "context", str(limit))
            for drafter, limit in long
            if limit is not None and self.num_tokens > limit
        ]
        return [Refusal(self.lane.name, *refusal) for refusal in (*self.menu.refused, *beyond)]
