"""Plans on lanes, and what they are expected to be worth: a lane's menu at its load, and the options it makes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.core import OFF, DrafterAbility, LaneAbility, Surface
from outrider.policy.eligibility import NOT_PAYING
from outrider.policy.rounds import Factors, Occupancy


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
    ks: tuple[int, ...]
    """Those that are allowed here now, ascending."""
    rates: tuple[float, ...]


class Menu(NamedTuple):
    """What lanes of one make can do at one load for one kind of request."""

    plain_rate: float
    entries: tuple[Entry, ...]
    refused: tuple[tuple[str, str, str], ...]
    """Drafter, code and detail."""
    like: LaneAbility
    """A lane of this make; keeps alive what the menu is remembered by."""
    by_drafter: Mapping[str, Entry]
    is_bounded: bool
    """Some drafter was made for a bounded context."""
    batch: int
    key: tuple[object, ...]
    """What it is remembered by."""
    version: int
    """How many curves had moved when it was made."""


#: Rates this near to the highest are equal: of drafters the lane's first of them is taken, as lanes name the simple
#: ones first, and of lanes the emptiest.
EQUAL = 0.98
#: More than any number of surfaces.
UNSERVED = 99
_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class Row:
    """One lane at its load."""

    key: tuple[LaneAbility, int, int, int]
    """What it is remembered by: the lane, requests on it (-1: unknown), its running limit, its cache's pressure."""
    seen: Occupancy
    menu: Menu
    source: Factors
    """What rates are multiplied by, as it follows what is learnt."""
    unserved: tuple[Surface, ...]
    """What of the request the lane does not serve at all."""
    inexact: tuple[Surface, ...]
    """What of the request the lane does not honour exactly."""
    num_tokens: int
    """Of the prompt."""
    lane: LaneAbility = field(init=False)
    factors: tuple[float, ...] = field(init=False)
    """The source's when this was made."""
    version: int = field(init=False)
    is_bounded: bool = field(init=False)
    """The menu's."""
    num_others: int = field(init=False)
    """Other requests on the lane."""
    share: float = field(init=False)
    """What waiting in the lane's queue leaves of the speed: the queue moves on as answers end."""
    num_missing: int = field(init=False)
    """Surfaces that are not honoured; `UNSERVED` when some are not served."""
    plain_rate: float = field(init=False)
    """Tokens per second of plain decoding; 0 when the lane has none."""
    rates: list[float] = field(init=False)
    """Of each entry, before what waiting leaves of it; 0 where the prompt is too long for the drafter."""
    shut: frozenset[str] = _NONE
    """Drafters that were not to be used when `fastest` was last asked for."""
    fastest: Entry | None = field(init=False)
    """Of all others, or nearly so."""
    fastest_rate: float = field(init=False)
    """Its tokens per second; 0 without one."""
    _best: Option | None = None
    _plain: Option | None = None
    """The fastest, and plain decoding, once they were asked for."""
    told: dict[object, tuple[str, ...]] = field(init=False, default_factory=dict, compare=False)
    """Reasons of decisions for this lane alone, in words, by what decided."""
    _possible: tuple[Option, ...] | None = field(init=False, default=None)
    _refused: tuple[Refusal, ...] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        running, waiting = self.seen[:2]
        self.lane, self.factors = self.key[0], self.source.now
        self.version, self.is_bounded = self.menu.version, self.menu.is_bounded
        self.num_others = running + waiting - 1
        self.share = self.lane.max_running / (self.lane.max_running + waiting)
        self.plain_rate = self.menu.plain_rate * self.factors[0] * self.share if self.lane.has_plain else 0.0
        self.num_missing = UNSERVED if self.unserved else len(self.inexact)
        entries, factors = self.menu.entries, self.factors
        self.rates = [entry.rate * factors[entry.place + 1] for entry in entries]
        if self.is_bounded:
            self.rates = [rate * self._reaches(entry) for entry, rate in zip(entries, self.rates, strict=True)]
        self._rank(_NONE)

    @property
    def plain(self) -> Option:
        """Plain decoding on this lane."""
        if self._plain is None:
            self._plain = Option(self.plain_rate, -self.num_others, self.lane, OFF, 0, self.seen)
        return self._plain

    @property
    def best(self) -> Option | None:
        """The fastest."""
        if self._best is None and self.fastest is not None:
            self._best = self.option(self.fastest)
        return self._best

    def usable(self, shut: Collection[str] = ()) -> Sequence[Entry]:
        """Without `shut` drafters, and without those that were made for less context than this prompt's."""
        entries = self.menu.entries
        if not (shut or self.menu.is_bounded):
            return entries
        return [entry for entry in entries if entry.drafter.drafter not in shut and self._reaches(entry)]

    def _reaches(self, entry: Entry) -> bool:
        limit = entry.drafter.max_context
        return limit is None or self.num_tokens <= limit

    def rank(self, shut: frozenset[str]) -> None:
        """Let `fastest` be of those that are not `shut`."""
        if shut is not self.shut and shut != self.shut:
            self._rank(shut)
            self._possible = self._refused = None
            self.told.clear()
        self.shut = shut

    def _rank(self, shut: frozenset[str]) -> None:
        self._best, self.fastest, self.fastest_rate = None, None, 0.0
        entries, rates = self.menu.entries, self.rates
        if shut:
            rates = [rate * (entry.drafter.drafter not in shut) for entry, rate in zip(entries, rates, strict=True)]
        enough = max(rates, default=0.0) * EQUAL
        for entry, rate in zip(entries, rates, strict=True) if enough else ():
            if rate >= enough:
                self.fastest, self.fastest_rate = entry, rate * self.share
                return

    def entry(self, drafter: str, k: int | None = None) -> Entry | None:
        """Of a drafter that may be used, and with this k."""
        menu = self.menu
        entry = menu.by_drafter.get(drafter)
        if entry is None or (menu.is_bounded and not self._reaches(entry)):
            return None
        return entry if k is None or k in entry.ks else None

    def rate_of(self, drafter: str, k: int | None = None) -> float:
        """Tokens per second of a drafter with this k or its best; 0 where it may not be used."""
        entry = self.menu.by_drafter.get(drafter)
        if entry is None or (k is not None and k not in entry.ks) or (self.is_bounded and not self._reaches(entry)):
            return 0.0
        return entry.rates[entry.k if k is None else k] * self.factors[entry.place + 1] * self.share

    def rate(self, entry: Entry, k: int) -> float:
        """Tokens per second."""
        return entry.rates[k] * self.factors[entry.place + 1] * self.share

    def option(self, entry: Entry, k: int | None = None) -> Option:
        """An entry, with its own or another k."""
        k = entry.k if k is None else k
        drafter = entry.drafter
        rate = self.rate(entry, k)
        return Option(rate, -self.num_others, self.lane, drafter.drafter, k, self.seen, drafter.is_sampled)

    @property
    def refusal(self) -> Refusal:
        """Of the whole lane, where others honour more of the request."""
        if self.unserved:
            return Refusal(self.lane.name, None, "not-served", ", ".join(self.unserved))
        return Refusal(self.lane.name, None, "not-exact", ", ".join(self.inexact))

    @property
    def possible(self) -> tuple[Option, ...]:
        """Plain decoding, and every drafter that was not shut with its best k."""
        if self._possible is None:
            plain = (self.plain,) if self.plain_rate else ()
            self._possible = (*plain, *map(self.option, self.usable(self.shut)))
        return self._possible

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """Drafters of it that were left out."""
        if self._refused is None:
            self._refused = self._found_refused()
        return self._refused

    def _found_refused(self) -> tuple[Refusal, ...]:
        long = [(entry.drafter, entry.drafter.max_context) for entry in self.menu.entries]
        beyond = [
            (drafter.drafter, "context", str(limit))
            for drafter, limit in long
            if limit is not None and self.num_tokens > limit
        ]
        shut = [
            (entry.drafter.drafter, NOT_PAYING, "") for entry in self.usable() if entry.drafter.drafter in self.shut
        ]
        return tuple(Refusal(self.lane.name, *refusal) for refusal in (*self.menu.refused, *beyond, *shut))
