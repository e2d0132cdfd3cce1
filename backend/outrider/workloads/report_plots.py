"""Plots of a report; one of which nothing was seen is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from outrider.plots.charts import Axes, Series, bar_chart, interval_chart, line_chart
from outrider.plots.svg import Labels, Plot, marked
from outrider.workloads.report_tables import by_task, p50, temperature
from outrider.workloads.results import Record, Result

#: Points of a distribution at most, bins of the longest stretch, and bars of a histogram.
_NUM_POINTS, _NUM_BINS, _NUM_BARS = 200, 40, 12


def plots(result: Result) -> list[Plot]:
    """Those that have something to show."""
    made = (_speeds, _first_tokens, _pauses, _steps, _throughput, _accepted)
    return marked(draw(result) for draw in made)


def _order(result: Result) -> list[str]:
    """An arm looks the same in all plots."""
    return [arm.name for arm in result.arms]


def _speeds(result: Result) -> Plot:
    rows: dict[str, dict[str, tuple[float, float, float]]] = {}
    for cell in by_task(result):
        found = p50(cell, "tokens_per_s")
        if found is not None:
            row = rows.setdefault(f"{cell.task}, T {temperature(cell)}", {})
            row[cell.arm] = (found.value, found.low or found.value, found.high or found.value)
    text = "Tokens per second of each request after its first token: the median, and the interval of 95 %."
    return interval_chart(Labels("speed", "Speed by task", "tokens per second", "", text), rows, _order(result))


def _first_tokens(result: Result) -> Plot:
    text = "Share of requests whose first token came within so many milliseconds of the moment when they were due."
    labels = Labels("first-token", "Time to the first token", "milliseconds", "share of requests", text)
    return _distribution(result, labels, lambda one: [one.steps[0].at_s - one.intended_s] if one.steps else [])


def _pauses(result: Result) -> Plot:
    text = "Share of pauses between one event that brought text and the next that lasted no longer than this."
    labels = Labels("pauses", "Pauses within answers", "milliseconds", "share of pauses", text)
    return _distribution(
        result, labels, lambda one: [b.at_s - a.at_s for a, b in zip(one.steps, one.steps[1:], strict=False)]
    )


def _distribution(result: Result, labels: Labels, times: Callable[[Record], list[float]]) -> Plot:
    series = []
    for arm in result.arms:
        values = sorted(1e3 * s for one in _answered(result) if one.arm == arm.name for s in times(one))
        if values:
            series.append(Series(arm.name, _cumulative(values)))
    return line_chart(labels, series, Axes((0.0, 1.0), may_be_log=True), _order(result))


def _cumulative(values: Sequence[float]) -> list[tuple[float, float]]:
    """Points of the distribution, the first and the last value among them."""
    last = len(values) - 1
    picked = sorted({round(i * last / (_NUM_POINTS - 1)) for i in range(_NUM_POINTS)})
    return [(values[i], (i + 1) / len(values)) for i in picked]


def _answered(result: Result) -> Iterator[Record]:
    return (one for one in result.records if one.error is None)


def _steps(result: Result) -> Plot:
    counts: dict[str, Counter[int]] = {}
    for one in _answered(result):
        sizes = (step.num_tokens for step in one.steps)
        counts.setdefault(one.arm, Counter()).update(min(size, _NUM_BARS) for size in sizes if size)
    text = "How many tokens one event brought, which is what one step of the engine wrote."
    labels = Labels("tokens-per-step", "Tokens per step", "tokens", "share of steps", text)
    return _shares(
        result, labels, {arm: [found[i] for i in range(1, _NUM_BARS + 1)] for arm, found in counts.items()}, 1
    )


def _accepted(result: Result) -> Plot:
    found = {cell.arm: cell.accepted_histogram for cell in result.cells if cell.task is None}
    text = "In which share of verify steps exactly so many draft tokens were accepted; arms without drafts have none."
    labels = Labels(
        "accepted", "Accepted drafts per verify step", "draft tokens accepted", "share of verify steps", text
    )
    folded = {arm: [*one[:_NUM_BARS], sum(one[_NUM_BARS:])] for arm, one in found.items()}
    return _shares(result, labels, folded, 0)


def _shares(result: Result, labels: Labels, counts: dict[str, list[int]], first: int) -> Plot:
    """Bars up to the last that anything is in; the very last one holds all above it."""
    arms = [arm.name for arm in result.arms if sum(counts.get(arm.name, ()))]
    num = max((i + 1 for arm in arms for i, count in enumerate(counts[arm]) if count), default=0)
    names = [str(first + i) for i in range(num)]
    if first + num > _NUM_BARS:
        names[-1] = f"≥{names[-1]}"
    shares = {arm: [count / sum(counts[arm]) for count in counts[arm][:num]] for arm in arms}
    return bar_chart(labels, names, shares, _order(result))


def _throughput(result: Result) -> Plot:
    longest = max((one.seconds for one in result.stretches), default=0.0)
    width = longest / _NUM_BINS
    series, is_spread, at = [], False, 0
    for stretch in result.stretches:
        bins = [0.0] * int(stretch.seconds / width) if width else []
        # Records stand as they came; parts of one turn have clocks of their own.
        own, at = result.records[at : at + stretch.num_requests], at + stretch.num_requests
        for one in own:
            if one.steps and stretch.num_tokens is not None:
                is_spread |= one.steps[0].num_tokens is None
                for at_s, num in _arrivals(one):
                    if 0 <= at_s < width * len(bins):
                        bins[int(at_s / width)] += num
        if bins and stretch.num_tokens is not None:
            points = [((i + 0.5) * width, num / width) for i, num in enumerate(bins)]
            series.append(Series(stretch.arm, points))
    text = "Tokens per second of all requests together, a line for each round."
    if is_spread:
        text += " Where the server does not count as it goes, an answer's tokens are spread evenly over its events."
    labels = Labels("throughput", "Throughput over time", "seconds", "tokens per second", text)
    return line_chart(labels, series, order=_order(result))


def _arrivals(record: Record) -> Iterator[tuple[float, float]]:
    """Moments and tokens."""
    each = (record.num_tokens or 0) / len(record.steps)
    for step in record.steps:
        yield step.at_s, each if step.num_tokens is None else step.num_tokens
