"""Intervals by resampling (Efron's bootstrap, 1979): jobs are drawn with replacement, with all that belongs to them.

Values of one job hang together, as pauses within one answer do; drawing them one by one would promise too much.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from operator import mul

from outrider.workloads.results import Distribution, Estimate

#: Draws for few jobs and for very many, and values that all draws of one figure may look at together.
_MAX_DRAWS, _MIN_DRAWS, _MAX_LOOKS = 500, 100, 1_000_000
_LOW, _HIGH = 0.025, 0.975
_SEED = 1

Valued = Sequence[tuple[Hashable, float]]
"""Values, each with the job it belongs to."""


class Resample:
    """Draws of the jobs of one arm or of pairs of two; the same draws serve every figure."""

    def __init__(self, jobs: Sequence[Hashable]) -> None:
        self._index = {job: i for i, job in enumerate(dict.fromkeys(jobs))}
        num, rng = len(self._index), random.Random(_SEED)
        num_draws = max(_MIN_DRAWS, min(_MAX_DRAWS, _MAX_LOOKS // max(num, 1)))
        self._draws = [_counts(rng, num) for _ in range(num_draws if num else 0)]

    def distribution(self, valued: Valued) -> Distribution | None:
        """None of no values."""
        if not valued:
            return None
        ordered = sorted(valued, key=lambda pair: pair[1])
        values = [value for _, value in ordered]
        jobs = [self._index[job] for job, _ in ordered]
        figures = [_percentiles(values, [1] * len(values))]
        for draw in self._draws[: max(_MIN_DRAWS, _MAX_LOOKS // len(values))]:
            weights = list(map(draw.__getitem__, jobs))
            if any(weights):
                figures.append(_percentiles(values, weights))
        num_jobs = len(set(jobs))
        p50, p90, p99 = (_estimate(found[0], found[1:], num_jobs) for found in zip(*figures, strict=True))
        return Distribution(num=len(values), p50=p50, p90=p90, p99=p99)

    def median(self, valued: Valued) -> Estimate | None:
        """None of no values."""
        found = self.distribution(valued)
        return None if found is None else found.p50

    def quotient(self, tops: Valued, bottoms: Valued, shown: Callable[[float], float] = float) -> Estimate | None:
        """Sum over sum, as `shown` makes it; None when there is nothing to divide by."""
        top, bottom = self._by_job(tops), self._by_job(bottoms)
        if not sum(bottom):
            return None
        drawn = [(sum(map(mul, draw, top)), sum(map(mul, draw, bottom))) for draw in self._draws]
        num_jobs = sum(map(bool, bottom))
        return _estimate(shown(sum(top) / sum(bottom)), [shown(a / b) for a, b in drawn if b], num_jobs)

    def _by_job(self, valued: Valued) -> list[float]:
        sums = [0.0] * len(self._index)
        for job, value in valued:
            sums[self._index[job]] += value
        return sums


def _counts(rng: random.Random, num: int) -> list[int]:
    counts = [0] * num
    for drawn in rng.choices(range(num), k=num):
        counts[drawn] += 1
    return counts


def _percentiles(values: Sequence[float], weights: Sequence[int]) -> list[float]:
    """Nearest-rank p50, p90 and p99 of ascending values."""
    ranks = list(accumulate(weights))
    return [values[bisect_left(ranks, share * ranks[-1])] for share in (0.5, 0.9, 0.99)]


def _estimate(value: float, drawn: Sequence[float], num_jobs: int) -> Estimate:
    ordered = sorted(drawn) or [value]
    low, high = (ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (_LOW, _HIGH))
    return Estimate(value=value, low=low, high=high, num_jobs=num_jobs)
