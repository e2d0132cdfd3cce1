"""How many drafts will be accepted: hazards per depth, from priors, shrunk from all tasks to the task to the tenant.

The hazard of depth j is the probability that draft j is accepted in a round whose first j - 1 drafts were; of a
tree, how much less often its j-th likeliest draft is accepted than the one before. So k is the length of a chain and
the size of a tree alike. A round in which a look-up finds nothing counts as one whose first draft is rejected, so the
curve is per round, match or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from operator import mul
from random import Random
from typing import Any, TypeVar

from outrider.core import MAX_K, SpecStats
from outrider.policy.counts import DEPTHS, PSEUDO, Counts, depth_counts
from outrider.policy.priors import LOOK_UPS, Cell, prior_hazards

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
#: Share of the drafts asked for that a look-up is expected to propose.
_FILL = 0.35

T = TypeVar("T")


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


def expected_tokens(hazards: Sequence[float]) -> tuple[float, ...]:
    """For k = 0 .. MAX_K; depths beyond the last hazard have the last one."""
    deep = repeat(hazards[-1], MAX_K - len(hazards))
    return tuple(accumulate(chain((1.0,), accumulate(chain(hazards[:MAX_K], deep), mul))))


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
        self.accuracy: dict[str, tuple[float, ...]] = {}
        """By head, what its card says; lanes tell it."""
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
        means: Sequence[float] = prior_hazards(cell, first, floor, self.accuracy.get(cell.drafter, ()))
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
        prior = prior_hazards(cell, accuracy=self.accuracy.get(cell.drafter, ()))
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
