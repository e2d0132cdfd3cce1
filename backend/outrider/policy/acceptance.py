"""How many drafts will be accepted: hazards per depth, from priors, shrunk from all tasks to the task to the tenant.

The hazard of depth j is the probability that draft j is accepted in a round whose first j - 1 drafts were. A round in
which a look-up finds nothing counts as one whose first draft is rejected, so the curve is per round, match or not.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from outrider.core import MAX_K, SpecStats

#: Depths that are told apart; deeper ones share the last.
DEPTHS = 5
#: Weight of what is believed before data, in trials.
_PSEUDO = 30.0
#: What one request's counts are multiplied by when the next one comes: of all tasks, and of one task or tenant.
_KEEP_ALL, _KEEP_TASK = 0.999, 0.98
#: Curves this close, in tokens per round, lead to the same decisions.
_NEAR = 0.03
#: After n updates of a cell, n / _GATHER of them are let gather before its curve is worked out anew: the first change
#: it much, later ones little. After _ALL_GATHER updates all curves are: they share what all tasks have in common.
_GATHER, _MAX_GATHER, _ALL_GATHER = 8, 128, 2048
#: Cells that are kept; those that were not updated for longest go first.
_MAX_CELLS = 20_000
#: Drafters that look up in the text that is there; a dry run on the prompt says something of them.
LOOK_UPS = frozenset({"ngram", "suffix"})
#: Share of the drafts asked for that a look-up is expected to propose, and its weight in rounds.
_FILL, _FILL_WEIGHT = 0.35, 100.0

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
#: Upper bounds of the temperature buckets, and what deterministic drafts keep of their acceptance in each.
_TEMPERATURES = (0.2, 0.65, 0.9, 1.15, math.inf)
_KEPT_HOT = (1.0, 0.85, 0.64, 0.45, 0.38)
_LENGTHS = (512, 4096, math.inf)


def temperature_bucket(temperature: float) -> int:
    return bisect_left(_TEMPERATURES, temperature)


def length_bucket(num_tokens: int) -> int:
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

    def __post_init__(self) -> None:
        self.tokens = expected_tokens(self.hazards)

    def is_near(self, other: Curve) -> bool:
        """No decision would differ."""
        pairs = zip(self.tokens, other.tokens, strict=True)
        return abs(self.fill - other.fill) < _NEAR and all(abs(a - b) <= _NEAR * a for a, b in pairs)

    def drawn(self, k: int, random: Random) -> float:
        """Tokens of a round with k drafts, drawn from what is believed, for Thompson sampling.

        All hazards are off by as many of their standard deviations: depths err together, and one draw is fast.
        """
        off = random.gauss(0.0, 1.0)
        tokens = survival = 1.0
        for depth in range(k):
            at = min(depth, DEPTHS - 1)
            hazard = self.hazards[at]
            hazard += off * math.sqrt(hazard * (1 - hazard) / self.weights[at])
            survival *= min(max(hazard, 0.0), 1.0)
            tokens += survival
        return tokens


def expected_tokens(hazards: Sequence[float]) -> tuple[float, ...]:
    """For k = 0 .. MAX_K; depths beyond the last hazard have the last one."""
    tokens, survival = [1.0], 1.0
    for depth in range(MAX_K):
        survival *= hazards[min(depth, len(hazards) - 1)]
        tokens.append(tokens[-1] + survival)
    return tuple(tokens)


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
    if first is not None:
        start = first
    if cell.drafter in LOOK_UPS:
        start = max(start, floor)
    return (start * kept, *(rest * kept for rest in rests))


@dataclass(slots=True)
class _Counts:
    """Trials and successes by depth, and the successes that the prior had expected of the same trials."""

    trials: list[float] = field(default_factory=lambda: [0.0] * DEPTHS)
    successes: list[float] = field(default_factory=lambda: [0.0] * DEPTHS)
    expected: float = 0.0

    def add(self, other: _Counts, keep: float) -> None:
        self.trials = [keep * a + b for a, b in zip(self.trials, other.trials, strict=True)]
        self.successes = [keep * a + b for a, b in zip(self.successes, other.successes, strict=True)]
        self.expected = keep * self.expected + other.expected

    def shift(self, means: Sequence[float], expected: float | None = None) -> list[float]:
        """The hazards moved together, in log odds, by how far all depths' successes are from what was expected.

        So a depth that no k has reached yet follows those that were: an acceptance that is seen only up to k must
        not look as if it ended there.
        """
        trials = sum(self.trials)
        if not trials:
            return list(means)
        if expected is None:
            expected = sum(n * mean for n, mean in zip(self.trials, means, strict=True))
        share = expected / trials
        moved = _logit((sum(self.successes) + _PSEUDO * share) / (trials + _PSEUDO)) - _logit(share)
        return [_inverse_logit(_logit(mean) + moved) for mean in means]

    def shrink(self, means: Sequence[float]) -> list[float]:
        """The hazards by depth: data, with the means as so many trials."""
        rows = zip(self.successes, self.trials, means, strict=True)
        return [(hits + _PSEUDO * mean) / (n + _PSEUDO) for hits, n, mean in rows]


def _logit(p: float) -> float:
    p = min(max(p, 1e-4), 1 - 1e-4)
    return math.log(p / (1 - p))


def _inverse_logit(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def depth_counts(stats: SpecStats, k: int, drafter: str) -> list[tuple[float, int]]:
    """Trials and successes of each of k depths: a round that accepted i drafts of more that it had says that draft
    i + 1 failed and nothing of later ones; one whose drafts were all accepted says nothing of deeper ones."""
    # A look-up that finds nothing is as good as one whose first draft is rejected.
    first = 1 if drafter in LOOK_UPS else 0
    reach, histogram = _reach(stats, k, first), stats.histogram
    counts = []
    for depth in range(k):
        successes, failures = sum(histogram[depth + 1 :]), sum(histogram[depth : depth + 1])
        share = 1.0 if depth < first else min(max(reach - depth, 0.0), 1.0)
        counts.append((successes + share * failures, successes))
    return counts


def _reach(stats: SpecStats, k: int, first: int) -> float:
    """How many drafts rounds had to verify: k, or fewer where so few drafts were wasted that some were not proposed.

    Only their sum is known. The rounds that accepted `first` drafts or more are taken to have had equally many, or as
    many as they accepted: their number is where the drafts beyond the accepted ones add up to those wasted. A part of
    a draft is one that some of the rounds had; it counts only where some had it accepted.
    """
    if stats.num_proposed is None:
        return k
    num_wasted = stats.num_proposed - stats.num_accepted
    for depth in range(first, k):
        rounds = sum(stats.histogram[first : depth + 1])
        if num_wasted < rounds:
            return depth + (num_wasted / rounds if any(stats.histogram[depth + 1 :]) else 0)
        num_wasted -= rounds
    return k


class Acceptance:
    """All counts, and the curves that follow from them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Any, ...], _Counts] = {}
        self._fills: dict[str, tuple[float, float]] = {}
        """By drafter: drafts proposed in units of k, and rounds."""
        self._stamps: dict[tuple[Any, ...], int] = {}
        self._num_updates: dict[Cell, tuple[int, int]] = {}
        """Of each cell, and how many there must be until its curve is worked out anew."""
        self._num_all = 0

    def stamp(self, key: tuple[Any, ...]) -> int:
        """Changes when curves are worth working out anew: `key` is a cell's last four fields, or these behind its
        drafter."""
        return self._stamps.get((), 0) + self._stamps.get(key, 0)

    def curve(self, cell: Cell, first: float | None = None, floor: float = 0.0) -> Curve:
        """The posterior of a cell."""
        means: Sequence[float] = prior_hazards(cell, first, floor)
        weights = [_PSEUDO] * DEPTHS
        for level, key in enumerate(cell.levels):
            counts = self._counts.get(key)
            if counts is None:
                break
            if level == 0:
                # Over all tasks only the common shift counts: their shapes differ.
                means = counts.shift(means, counts.expected)
                continue
            means = counts.shrink(counts.shift(means))
            weights = [weight + n for weight, n in zip(weights, counts.trials, strict=True)]
        return Curve(tuple(means), tuple(weights), self._fill(cell.drafter))

    def update(self, cell: Cell, stats: SpecStats, k: int) -> None:
        """Learn from one request that was speculated with `k`; plain rounds are not for here."""
        counts = _Counts()
        for depth, (trials, successes) in enumerate(depth_counts(stats, k, cell.drafter)):
            slot = min(depth, DEPTHS - 1)
            counts.trials[slot] += trials
            counts.successes[slot] += successes
        self._add(cell, counts)
        if stats.num_proposed is not None:
            proposed, asked = self._fills.get(cell.drafter, (_FILL * _FILL_WEIGHT, _FILL_WEIGHT))
            self._fills[cell.drafter] = (
                _KEEP_ALL * proposed + stats.num_proposed / k,
                _KEEP_ALL * asked + stats.num_verify_steps,
            )

    def _add(self, cell: Cell, counts: _Counts) -> None:
        prior = prior_hazards(cell)
        counts.expected = sum(n * mean for n, mean in zip(counts.trials, prior, strict=True))
        for level, key in enumerate(cell.levels):
            kept = self._counts.pop(key, None) or _Counts()
            kept.add(counts, _KEEP_TASK if level else _KEEP_ALL)
            self._counts[key] = kept
        while len(self._counts) > _MAX_CELLS:
            del self._counts[next(iter(self._counts))]
        number, due = self._num_updates.get(cell, (0, 1))
        number += 1
        is_due = number >= due
        self._num_updates[cell] = number, due if not is_due else number + min(1 + number // _GATHER, _MAX_GATHER)
        if is_due:
            for key in (cell[2:], (cell.drafter, *cell[2:])):
                self._stamps[key] = self._stamps.get(key, 0) + 1
        self._num_all += 1
        if self._num_all % _ALL_GATHER == 0:
            self._stamps[()] = self._stamps.get((), 0) + 1

    def _fill(self, drafter: str) -> float:
        if drafter not in LOOK_UPS:
            return 1.0
        proposed, asked = self._fills.get(drafter, (_FILL, 1.0))
        return min(1.0, max(0.02, proposed / asked))

    def to_state(self) -> dict[str, Any]:
        """Plain data of all counts."""
        counts = [[list(key), c.trials, c.successes, c.expected] for key, c in self._counts.items()]
        return {"counts": counts, "fills": {name: list(pair) for name, pair in self._fills.items()}}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Acceptance:
        found = cls()
        for key, trials, successes, expected in state["counts"]:
            found._counts[tuple(key)] = _Counts(list(trials), list(successes), expected)
        found._fills = {name: (pair[0], pair[1]) for name, pair in state["fills"].items()}
        return found
