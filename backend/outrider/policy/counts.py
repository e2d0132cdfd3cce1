"""What verified rounds say of each depth: trials and successes, censoring, and what they make of earlier belief."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from outrider.core import SpecStats

#: Depths that are told apart, of trees the likeliest drafts; deeper ones share the last.
DEPTHS = 5
#: Weight of what is believed before data, in trials.
PSEUDO = 30.0


@dataclass(slots=True)
class Counts:
    """Trials and successes by depth, and the successes that the prior had expected of the same trials."""

    trials: list[float] = field(default_factory=lambda: [0.0] * DEPTHS)
    successes: list[float] = field(default_factory=lambda: [0.0] * DEPTHS)
    expected: float = 0.0
    num_updates: int = 0
    due: int = 1
    """The update from which on what follows from the counts is to be worked out anew."""

    @classmethod
    def of(cls, counts: Sequence[tuple[float, int]]) -> Counts:
        """Trials and successes of each depth; deep ones are added up."""
        found = cls()
        for depth, (trials, successes) in enumerate(counts):
            slot = min(depth, DEPTHS - 1)
            found.trials[slot] += trials
            found.successes[slot] += successes
        return found

    def add(self, other: Counts, keep: float) -> None:
        """Take in another's counts, after weighing what is here by `keep`."""
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
        moved = _logit((sum(self.successes) + PSEUDO * share) / (trials + PSEUDO)) - _logit(share)
        return [_inverse_logit(_logit(mean) + moved) for mean in means]

    def shrink(self, means: Sequence[float]) -> list[float]:
        """The hazards by depth: data, with the means as so many trials."""
        rows = zip(self.successes, self.trials, means, strict=True)
        return [(hits + PSEUDO * mean) / (n + PSEUDO) for hits, n, mean in rows]


def _logit(p: float) -> float:
    p = min(max(p, 1e-4), 1 - 1e-4)
    return math.log(p / (1 - p))


def _inverse_logit(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def depth_counts(stats: SpecStats, k: int, *, may_miss: bool) -> list[tuple[float, int]]:
    """Trials and successes of each of k drafts: a round that accepted i drafts of a longer chain says that draft
    i + 1 failed and nothing of later ones; one whose drafts were all accepted says nothing of deeper ones.

    A tree has its likeliest draft first and so on: a draft's trials are the rounds in which the one before it was
    accepted, as in a chain, so that its hazard is how much less often it is accepted. Then the product of hazards is
    the chance of each draft, chain or tree, and their sum what so many drafts are worth.

    A drafter that `may_miss` and finds nothing is as good as one whose first draft is rejected.
    """
    first = int(may_miss)
    reach, before = _reach(stats, k, first), stats.num_verify_steps
    accepted = stats.by_draft or tuple(accumulate(reversed(stats.histogram[1:])))[::-1]
    counts = []
    for place, successes in enumerate((accepted + (0,) * k)[:k]):
        share = 1.0 if place < first else min(max(reach - place, 0.0), 1.0)
        counts.append((successes + share * max(before - successes, 0), successes))
        before = successes
    return counts


def _reach(stats: SpecStats, k: int, first: int) -> float:
    """How many drafts rounds had to verify: k, or fewer where so few drafts were wasted that some were not proposed.

    Only their sum is known. The rounds that accepted `first` drafts or more are taken to have had equally many, or as
    many as they accepted: their number is where the drafts beyond the accepted ones add up to those wasted. A part of
    a draft is one that some of the rounds had; it counts only where some had it accepted.
    """
    if stats.num_proposed is None:
        return k
    num_wasted = max(0, stats.num_proposed - stats.num_accepted)
    for depth in range(first, k):
        rounds = sum(stats.histogram[first : depth + 1])
        if num_wasted < rounds:
            return depth + (num_wasted / rounds if any(stats.histogram[depth + 1 :]) else 0)
        num_wasted -= rounds
    return k
