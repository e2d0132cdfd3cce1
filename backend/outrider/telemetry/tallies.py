"""Counters and histograms of one event loop: without locks, so that counting a request costs little beside it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily


class Tally:
    """A counter, as Prometheus' library shows it; without labels it is there from the beginning."""

    def __init__(self, name: str, what: str, labels: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        self._named = name, what
        self._labelnames = labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        registry.register(self)

    def add(self, *labels: str, num: float = 1.0) -> None:
        """Count `num` more."""
        self._values[labels] = self._values.get(labels, 0.0) + num

    def collect(self) -> Iterator[CounterMetricFamily]:
        """For the registry."""
        family = CounterMetricFamily(*self._named, labels=self._labelnames)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family

    describe = collect  # by which the registry knows its names


class Spread:
    """A histogram, as Prometheus' library shows it; without labels it is there from the beginning."""

    def __init__(
        self,
        name: str,
        what: str,
        labels: Sequence[str] = (),
        *,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._named = name, what
        self._labelnames = labels
        self._bounds = (*bounds, float("inf"))
        self._seen: dict[tuple[str, ...], list[float]] = {} if labels else {(): self._nothing()}
        registry.register(self)

    def _nothing(self) -> list[float]:
        """How many values lie up to each bound and over the one before, and the sum of all."""
        return [0.0] * (len(self._bounds) + 1)

    def add(self, value: float, *labels: str) -> None:
        """Count one value."""
        seen = self._seen.get(labels)
        if seen is None:
            seen = self._seen[labels] = self._nothing()
        seen[bisect_left(self._bounds, value)] += 1
        seen[-1] += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """For the registry."""
        family = HistogramMetricFamily(*self._named, labels=self._labelnames)
        names = [*map(str, self._bounds[:-1]), "+Inf"]
        for labels, (*counts, total) in self._seen.items():
            family.add_metric(labels, list(zip(names, accumulate(counts), strict=True)), total)
        yield family

    describe = collect  # by which the registry knows its names
