"""Counters and histograms as plain numbers, counted by one thread: the library's own lock themselves at each step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class Counter(Collector):
    """A number for each tuple of labels' values; with no labels one, which begins with 0."""

    def __init__(self, name: str, what: str, labels: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        self._name, self._what, self._labels = name, what, labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        registry.register(self)

    def inc(self, *labels: str, by: float = 1.0) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + by

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._what, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class Histogram(Collector):
    """Of values their number up to each bound of `buckets`, which ascend, and their sum; with or without labels."""

    def __init__(
        self,
        name: str,
        what: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._what, self._labels, self._bounds = name, what, labels, buckets
        self._counts: dict[tuple[str, ...], list[float]] = {}
        """Of values up to each bound and above the one before it, then of those above all; last the sum."""
        if not labels:
            self._counts[()] = self._nothing()
        registry.register(self)

    def _nothing(self) -> list[float]:
        return [0.0] * (len(self._bounds) + 2)

    def observe(self, value: float, *labels: str) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = self._nothing()
        counts[bisect_left(self._bounds, value)] += 1.0
        counts[-1] += value

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._what, labels=self._labels)
        names = [*map(str, self._bounds), "+Inf"]
        for labels, counts in self._counts.items():
            family.add_metric(labels, list(zip(names, accumulate(counts[:-1]), strict=True)), counts[-1])
        yield family
