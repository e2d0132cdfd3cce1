"""How many drafts will be accepted: hazards per depth, from priors, shrunk from all tasks to the task to the tenant.

The hazard of depth j is the probability that draft j is accepted in a round whose first j - 1 drafts were; of a
tree, how much less often its j-th likeliest draft is accepted than the one before. So k is the length of a chain and
the size of a tree alike. A round in which a look-up finds nothing counts as one whose first draft is rejected, so the
curve is per round, match or not.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, repeat
from operator import mul
from random import Random
from typing import Any, NamedTuple, TypeVar

from outrider.core import MAX_K, DrafterAbility, SpecStats
from outrider.cost import DRAWN_FROM
from outrider.policy.counts import DEPTHS, PSEUDO, Counts, depth_counts

#: What one request's counts are multiplied by when the next one comes: of all tasks, and of one task or tenant.
_KEEP_ALL, _KEEP_TASK = 0.999, 0.98
#: Curves this close, in tokens per round, lead to the same decisions.
_NEAR = 0.03
#: After n updates of a cell, n / _GATHER of them are let gather before its curve is worked out anew: the first change
#: it much, later ones little. All curves are in the same way, as they share what all tasks have in common, but at
#: the latest after _ALL_GATHER updates.
_GATHER, _MAX_GATHER, _ALL_GATHER = 8, 128, 2048
#: Entries that a map by tenants keeps; those that were not set for longest go first.
_MAX_KEPT = 20_000
#: Drafters that look up in the text that is there; a dry run on the prompt says something of them.
LOOK_UPS = frozenset({"ngram", "suffix"})
#: Share of the drafts asked for that a look-up is expected to propose.
_FILL = 0.35

#: First and later hazards at temperature 0, by task. Look-ups: measured on the shipped prompts with the embedded
#: engine. Models: published figures of EAGLE-3 class heads, interpolated where a task has none.
_LOOK_UP_PRIOR = {
    "code": (0.20, 0.70), "edit": (0.55, 0.80), "quote": (0.60, 0.90), "extract": (0.55, 0.80),
    "summarise": (0.21, 0.70), "rag": (0.28, 0.70), "translate": (0.25, 0.70), "maths": (0.18, 0.70),
    "chat": (0.12, 0.60), "creative": (0.08, 0.60),
}  # fmt: skip
_MODEL_PRIOR = {
    "code": 0.75, "edit": 0.75, "quote": 0.80, "extract": 0.70, "summarise": 0.60, "rag": 0.60, "translate": 0.60,
    "maths": 0.81, "chat": 0.55, "creative": 0.50,
}  # fmt: skip
#: What a drafter's first hazard adds to that, and what each depth multiplies it by.
_MODEL_SHAPE = {
    "eagle2": (-0.05, 1.0),
    "medusa": (-0.15, 0.75),
    "draft_model": (-0.05, 1.0),
    "layer_skip": (-0.1, 1.0),
}
#: Drafters of trees up to this bucket of temperatures, of chains above; and the least of a tree's later hazards:
#: beside a likely draft stand others that are nearly as likely.
_TREES, _TREES_UP_TO, _TREE_HAZARD = frozenset({"eagle2", "eagle3", "medusa", "hybrid"}), 1, 0.72
#: Upper bounds of the temperature buckets, and what deterministic drafts keep of their acceptance in each. One ends
#: where trees give way to chains, so that none holds counts of both.
_TEMPERATURES = (0.2, math.nextafter(DRAWN_FROM, 0), 0.9, 1.15, math.inf)
_KEPT_HOT = (1.0, 0.85, 0.64, 0.45, 0.38)
_LENGTHS = (512, 4096, math.inf)

T = TypeVar("T")


def temperature_bucket(temperature: float) -> int:
    """Which band of temperatures it lies in."""
    return bisect_left(_TEMPERATURES, temperature)


def length_bucket(num_tokens: int) -> int:
    """Which band of prompt lengths it lies in."""
    return bisect_left(_LENGTHS, num_tokens)


class Cell(NamedTuple):
    """What acceptance is kept by."""

    drafter: str
    is_sampled: bool
    temperature: int
    """Bucket."""
    task: str
    length: int
    """Bucket of the prompt's length."""
    tenant: str | None = None

    @property
    def levels(self) -> tuple[tuple[Any, ...], ...]:
        """Keys of the counts that bear on it, from the widest on."""
        wide = (self.drafter, self.is_sampled, self.temperature)
        task = (*wide, self.task, self.length)
        return (wide, task) if self.tenant is None else (wide, task, (*task, self.tenant))


@dataclass(slots=True)
class Curve:
    """Expected tokens per round by k."""

    hazards: tuple[float, ...]
    weights: tuple[float, ...]
    """Trials behind each hazard, the prior's included."""
    fill: float
    """Share of the drafts asked for that are really proposed."""
    tokens: tuple[float, ...] = ()
    """Entry k: expected tokens of a round with k drafts, the target's own included."""
    errors: tuple[float, ...] = ()
    """Standard deviations of the hazards."""

    def __post_init__(self) -> None:
        self.tokens = expected_tokens(self.hazards)
        self.errors = tuple([math.sqrt(h * (1 - h) / n) for h, n in zip(self.hazards, self.weights, strict=True)])

    def is_near(self, other: Curve, most: int = MAX_K) -> bool:
        """No decision would differ whose k is at most this."""
        pairs = zip(self.tokens[: most + 1], other.tokens, strict=False)
        return abs(self.fill - other.fill) < _NEAR and all([abs(a - b) <= _NEAR * a for a, b in pairs])

    def drawn(self, k: int, random: Random) -> float:
        """Tokens of a round with k drafts, drawn from what is believed, for Thompson sampling.

        All hazards are off by as many of their standard deviations: depths err together, and one draw is fast.
        """
        off = random.gauss(0.0, 1.0)
        tokens = survival = 1.0
        hazard = 0.0
        for mean, error in zip(self.hazards[:k], self.errors, strict=False):
            hazard = mean + off * error
            hazard = 0.0 if hazard < 0.0 else 1.0 if hazard > 1.0 else hazard
            survival *= hazard
            tokens += survival
        for _ in range(k - DEPTHS):
            survival *= hazard
            tokens += survival
        return tokens


def steps_at_most(drafter: DrafterAbility, cell: Cell) -> int:
    """Draft steps of a round: hot requests have chains, where others have trees of bounded depth."""
    return drafter.depth if cell.temperature <= _TREES_UP_TO else MAX_K


def expected_tokens(hazards: Sequence[float]) -> tuple[float, ...]:
    """For k = 0 .. MAX_K; depths beyond the last hazard have the last one."""
    deep = repeat(hazards[-1], MAX_K - len(hazards))
    return tuple(accumulate(chain((1.0,), accumulate(chain(hazards[:MAX_K], deep), mul))))


@lru_cache(maxsize=1024)
def prior_hazards(cell: Cell, first: float | None = None, floor: float = 0.0) -> tuple[float, ...]:
    """What is believed before data. `first` is the workload's own first hazard at temperature 0; `floor` bounds it
    from below where a dry run on the prompt has shown more."""
    kept = 1.0 if cell.is_sampled else _KEPT_HOT[cell.temperature]
    if cell.drafter in LOOK_UPS:
        start, rest = _LOOK_UP_PRIOR[cell.task]
        rests = [rest] * (DEPTHS - 1)
    elif cell.drafter == "prediction":
        start, rests = 0.8, [0.9] * (DEPTHS - 1)
    else:
        shift, factor = _MODEL_SHAPE.get(cell.drafter, (0.0, 1.0))
        start = _MODEL_PRIOR[cell.task] + shift
        rests = [start * factor**depth for depth in range(1, DEPTHS)]
        if cell.drafter in _TREES and cell.temperature <= _TREES_UP_TO:
            rests = [start * factor, *[max(start, _TREE_HAZARD) * factor] * (DEPTHS - 2)]
    if first is not None:
        start = first
    if cell.drafter in LOOK_UPS:
        start = max(start, floor)
    return (start * kept, *(rest * kept for rest in rests))


class _Recent(dict[tuple[Any, ...], T]):
    """A map that forgets what was not put for longest."""

    def put(self, key: tuple[Any, ...], value: T) -> None:
        self.pop(key, None)
        self[key] = value
        if len(self) > _MAX_KEPT:
            del self[next(iter(self))]


class Acceptance:
    """All counts, and the curves that follow from them."""

    def __init__(self) -> None:
        self._counts: _Recent[Counts] = _Recent()
        self._fills: dict[tuple[str, str], tuple[float, float]] = {}
        """By drafter and task: drafts proposed in units of k, and rounds."""
        self._stamps: _Recent[int] = _Recent()
        """Numbers of the updates that made curves worth working out anew."""
        self._all_stamp = self._num_all = 0
        self._all_due = 1

    def stamp(self, key: tuple[Any, ...]) -> int:
        """Changes when curves are worth working out anew: `key` is a cell's last four fields, or these behind its
        drafter."""
        return max(self._all_stamp, self._stamps.get(key, 0))

    def curve(self, cell: Cell, first: float | None = None, floor: float = 0.0) -> Curve:
        """The posterior of a cell."""
        means: Sequence[float] = prior_hazards(cell, first, floor)
        weights = [PSEUDO] * DEPTHS
        for level, key in enumerate(cell.levels):
            counts = self._counts.get(key)
            if counts is None:
                break
            if level == 0:
                # Over all tasks only the common shift counts: their shapes differ.
                means = counts.shift(means, counts.expected)
                continue
            means = counts.shrink(counts.shift(means))
            # A tenant's trials are among its task's: that one is believed for as many as any task is without data.
            weights = [PSEUDO + n for n in counts.trials]
        return Curve(tuple(means), tuple(weights), self._fill(cell))

    def update(self, cell: Cell, stats: SpecStats, k: int) -> None:
        """Learn from one request that was speculated with `k`; plain rounds are not for here."""
        self._add(cell, Counts.of(depth_counts(stats, k, may_miss=cell.drafter in LOOK_UPS)))
        if stats.num_proposed is not None:
            key = (cell.drafter, cell.task)
            proposed, asked = self._fills.get(key, (0.0, 0.0))
            self._fills[key] = (
                _KEEP_TASK * proposed + stats.num_proposed / k,
                _KEEP_TASK * asked + stats.num_verify_steps,
            )

    def replay(self, cell: Cell, stats: SpecStats, k: int) -> None:
        """Learn from what a drafter would have shown of a text that was written without it; how often it proposes is
        learnt where it runs."""
        self._add(cell, Counts.of(depth_counts(stats, k, may_miss=True)))

    def _add(self, cell: Cell, counts: Counts) -> None:
        prior = prior_hazards(cell)
        counts.expected = sum(n * mean for n, mean in zip(counts.trials, prior, strict=True))
        for level, key in enumerate(cell.levels):
            kept = self._counts.get(key) or Counts()
            kept.add(counts, _KEEP_TASK if level else _KEEP_ALL)
            self._counts.put(key, kept)
        self._num_all += 1
        kept.num_updates += 1
        if kept.num_updates >= kept.due:
            kept.due = kept.num_updates + min(1 + kept.num_updates // _GATHER, _MAX_GATHER)
            for key in (cell[2:], (cell.drafter, *cell[2:])):
                self._stamps.put(key, self._num_all)
        if self._num_all >= self._all_due:
            self._all_due = self._num_all + min(1 + self._num_all // _GATHER, _ALL_GATHER)
            self._all_stamp = self._num_all

    def _fill(self, cell: Cell) -> float:
        """How often a look-up finds something depends on the task, and not on temperature as its acceptance does."""
        if cell.drafter not in LOOK_UPS:
            return 1.0
        proposed, asked = self._fills.get((cell.drafter, cell.task), (0.0, 0.0))
        return min(1.0, max(0.02, (proposed + PSEUDO * _FILL) / (asked + PSEUDO)))

    def to_state(self) -> dict[str, Any]:
        """Plain data of all counts."""
        counts = [[list(key), c.trials, c.successes, c.expected] for key, c in self._counts.items()]
        return {"counts": counts, "fills": [[*key, *pair] for key, pair in self._fills.items()]}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Acceptance:
        """Of what `to_state` gave."""
        found = cls()
        for key, trials, successes, expected in state["counts"]:
            found._counts[tuple(key)] = Counts(list(trials), list(successes), expected)
        found._fills = {(drafter, task): (proposed, asked) for drafter, task, proposed, asked in state["fills"]}
        return found
