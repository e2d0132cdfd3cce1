"""Samples with given speeds, for the tests of what is made of them."""

from __future__ import annotations

from outrider.cli.bench.samples import Case, Sample, Setting
from outrider.core import SpecStats


def sample(
    arm: str,
    k: int = 0,
    *,
    tokens_per_s: float = 10.0,
    group: str = "quote",
    case: str = "one",
    num_tokens: int = 21,
    histogram: tuple[int, ...] | None = None,
    draft_s: float = 0.0,
) -> Sample:
    """A token at once, then one after the other at this speed."""
    stats = None
    if histogram is not None:
        stats = SpecStats(sum(histogram), sum(i * n for i, n in enumerate(histogram)), histogram)
    times = tuple(1.0 + i / tokens_per_s for i in range(num_tokens))
    return Sample(
        Setting(arm, k), Case(case, group, "text"), 0, tuple(range(num_tokens)), tuple(range(1, num_tokens + 1)),
        times, arm if k else "off", k, stats, draft_s,
    )  # fmt: skip
