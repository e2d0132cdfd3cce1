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


@dataclass(slots=True)
class Entry:
    """The best k of one drafter, before the lane's corrections; `rates` are tokens per second by k."""

    place: int
    """Among the lane's drafters."""
    drafter: DrafterAbility
    k: int
    rate: float
    ks: tuple[int, ...]
    """Those that are allowed here now, ascending."""
    rates: tuple[float, ...]


@dataclass(slots=True)
class Menu:
    """What lanes of one make can do at one load for one kind of request."""

    plain_rate: float
    entries: tuple[Entry, ...]
    refused: tuple[tuple[str, str, str], ...]
    """Drafter, code and detail."""
    like: LaneAbility
    """A lane of this make; keeps alive what the menu is remembered by."""
    by_drafter: Mapping[str, Entry]
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
class Prices:
    """What one lane is expected to do in batches of one size, as long as nothing is learnt that changes it."""

    menu: Menu
    source: Factors
    """What rates are multiplied by, as it follows what is learnt."""
    has_plain: bool
    factors: tuple[float, ...] = field(init=False)
    """The source's when this was made."""
    version: int = field(init=False)
    """The menu's."""
    plain_rate: float = field(init=False)
    """Tokens per second of plain decoding; 0 when the lane has none."""
    rates: dict[str, float] = field(init=False)
    """Of each drafter with its best k, in the menu's order."""
    shut: frozenset[str] = _NONE
    """Drafters that were not to be used when `fastest` was last asked for."""
    fastest: Entry | None = field(init=False)
    """Of all others, or nearly so."""
    fastest_rate: float = field(init=False)
    """Its tokens per second; 0 without one."""
    _rate_of: dict[tuple[str, int | None], float] = field(default_factory=dict)
    """By plan, once it was asked for."""

    def __post_init__(self) -> None:
        menu = self.menu
        self.version = menu.version
        self.factors = factors = self.source.now
        self.plain_rate = menu.plain_rate * factors[0] if self.has_plain else 0.0
        self.rates = {name: entry.rate * factors[entry.place + 1] for name, entry in menu.by_drafter.items()}
        self._rank()

    def rank(self, shut: frozenset[str]) -> None:
        """Let `fastest` be of those that are not `shut`."""
        if shut != self.shut:
            self.shut = shut
            self._rank()
        self.shut = shut

    def entry(self, drafter: str, k: int | None = None) -> Entry | None:
        """Of a drafter that may be used, and with this k."""
        entry = self.menu.by_drafter.get(drafter)
        return entry if entry is not None and (k is None or k in entry.ks) else None

    def rate(self, entry: Entry, k: int) -> float:
        """Tokens per second."""
        return entry.rates[k] * self.factors[entry.place + 1]

    def rate_of(self, plan: tuple[str, int | None]) -> float:
        """Tokens per second of a drafter with a k or its best; 0 where it may not be used."""
        found = self._rate_of.get(plan)
        if found is None:
            entry, k = self.entry(*plan), plan[1]
            found = self._rate_of[plan] = 0.0 if entry is None else self.rate(entry, entry.k if k is None else k)
        return found

    def _rank(self) -> None:
        self.fastest, self.fastest_rate = None, 0.0
        rates, shut = self.rates, self.shut
        if shut:
            rates = {name: rate for name, rate in rates.items() if name not in shut}
        enough = max(rates.values(), default=0.0) * EQUAL
        for name, rate in rates.items() if enough else ():
            if rate >= enough:
                self.fastest, self.fastest_rate = self.menu.by_drafter[name], rate
                return


@dataclass(slots=True)
class Row:
    """One lane at its load."""

    key: tuple[LaneAbility, int, int, int]
    """What it is remembered by: the lane, requests on it (-1: unknown), its running limit, its cache's pressure."""
    seen: Occupancy
    prices: Prices
    unserved: tuple[Surface, ...]
    """What of the request the lane does not serve at all."""
    inexact: tuple[Surface, ...]
    """What of the request the lane does not honour exactly."""
    lane: LaneAbility = field(init=False)
    num_others: int = field(init=False)
    """Other requests on the lane."""
    share: float = field(init=False)
    """What waiting in the lane's queue leaves of the speed: the queue moves on as answers end."""
    num_missing: int = field(init=False)
    """Surfaces that are not honoured; `UNSERVED` when some are not served."""
    plain_rate: float = field(init=False)
    """Tokens per second of plain decoding; 0 when the lane has none."""
    shut: frozenset[str] | None = None
    """Drafters that were not to be used when it was last ranked."""
    fastest: Entry | None = field(init=False)
    """Of all others, or nearly so."""
    fastest_rate: float = field(init=False)
    """Its tokens per second; 0 without one."""
    epoch: int = -1
    """As of which change of what is learnt it was found to be up to date."""
    _plain: Option | None = None
    _best: Option | None = None
    """Plain decoding and the fastest, once they were asked for."""
    _shown: tuple[frozenset[str], tuple[Option, ...], tuple[Refusal, ...]] | None = None
    """What was possible and what was refused, with the drafters that were shut, once it was asked for."""
    told: dict[object, tuple[str, ...]] = field(init=False, default_factory=dict, compare=False)
    """Reasons of decisions for this lane alone, in words, by what decided."""

    def __post_init__(self) -> None:
        running, waiting = self.seen[:2]
        self.lane = lane = self.key[0]
        self.num_others = running + waiting - 1
        self.share = share = lane.max_running / (lane.max_running + waiting)
        self.plain_rate = self.prices.plain_rate * share
        self.num_missing = UNSERVED if self.unserved else len(self.inexact)

    def at(self, prices: Prices) -> Row:
        """The same with what is known now; this one stays as it was decided by."""
        return Row(self.key, self.seen, prices, self.unserved, self.inexact)

    @property
    def plain(self) -> Option:
        """Plain decoding on this lane."""
        if self._plain is None:
            self._plain = Option(self.plain_rate, -self.num_others, self.lane, OFF, 0, self.seen)
        return self._plain

    def rank(self, shut: frozenset[str]) -> None:
        """Let `fastest` be of those that are not `shut`."""
        prices = self.prices
        prices.rank(shut)
        self.shut, self._best, self.fastest = shut, None, prices.fastest
        self.fastest_rate = prices.fastest_rate * self.share

    @property
    def best(self) -> Option | None:
        """The fastest of those that were not shut when it was last ranked."""
        if self._best is None and self.fastest is not None:
            self._best = self.option(self.fastest)
        return self._best

    def usable(self, shut: Collection[str] = ()) -> Sequence[Entry]:
        """Without `shut` drafters."""
        entries = self.prices.menu.entries
        return [entry for entry in entries if entry.drafter.drafter not in shut] if shut else entries

    def option(self, entry: Entry, k: int | None = None) -> Option:
        """An entry, with its own or another k."""
        k = entry.k if k is None else k
        drafter = entry.drafter
        rate = self.prices.rate(entry, k) * self.share
        return Option(rate, -self.num_others, self.lane, drafter.drafter, k, self.seen, drafter.is_sampled)

    @property
    def refusal(self) -> Refusal:
        """Of the whole lane, where others honour more of the request."""
        if self.unserved:
            return Refusal(self.lane.name, None, "not-served", ", ".join(self.unserved))
        return Refusal(self.lane.name, None, "not-exact", ", ".join(self.inexact))

    def shown(self, shut: frozenset[str]) -> tuple[tuple[Option, ...], tuple[Refusal, ...]]:
        """Plain decoding and every drafter that is not `shut` with its best k, and drafters that were left out.

        Rows are shared, so who decided says what was shut then.
        """
        if self._shown is None or self._shown[0] is not shut:
            plain = (self.plain,) if self.plain_rate else ()
            possible = (*plain, *map(self.option, self.usable(shut)))
            closed = [(name, NOT_PAYING, "") for name in self.prices.menu.by_drafter if name in shut]
            refused = (*self.prices.menu.refused, *closed)
            self._shown = shut, possible, tuple([Refusal(self.lane.name, *one) for one in refused])
        return self._shown[1:]
