"""Rows of a report: every arm at a glance, by task and temperature, what a reader waits for, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from outrider.workloads.results import Against, Cell, Distribution, Estimate, Metric, Result, Stretch
from outrider.workloads.tables import Figure, Row, Value

#: Percentiles that a result holds, in order.
PERCENTILES = [name for name in Distribution.model_fields if name.startswith("p")]
_LATENCIES: tuple[tuple[Metric, str], ...] = (
    ("ttft_ms", "first token ms"), ("tpot_ms", "ms/token"), ("gap_ms", "pause ms"),
)  # fmt: skip
_COMPARED: tuple[Metric, ...] = ("tokens_per_s", "ttft_ms", "tpot_ms", "latency_ms")
_MOST_ERRORS, _MOST_CHARS, _MOST_PLANS = 20, 300, 3

_Cells = dict[str, Value]


def glance_rows(result: Result) -> list[Row]:
    """A row for each arm over everything."""
    return [_glance(result, cell) for cell in overall(result)]


def _glance(result: Result, cell: Cell) -> Row:
    stretches = [one for one in result.stretches if one.arm == cell.arm]
    row: dict[str, Value] = {"arm": cell.arm, **_speed(result, cell)}
    row["tokens/s of all"] = _over_rounds(_speeds(stretches))
    row |= {"first token ms p50": p50(cell, "ttft_ms"), "pause ms p50": p50(cell, "gap_ms")}
    row |= {**_drafts(cell), "slow pauses": cell.num_slow_gaps}
    del row["drafts"]
    if result.slo is not None:
        good = list({one.round: one.good_per_s for one in stretches if one.good_per_s is not None}.values())
        row |= {"within SLO": _figure(cell.share_within_slo), "good/s": _over_rounds(good)}
    return row | _counts(cell)


def _speeds(stretches: Sequence[Stretch]) -> list[float]:
    """Tokens per second of each round, over all its parts; rounds without counts are left out."""
    found = []
    for number in dict.fromkeys(one.round for one in stretches):
        parts = [one for one in stretches if one.round == number]
        counts = [one.num_tokens for one in parts if one.num_tokens is not None]
        if len(counts) == len(parts):
            found.append(sum(counts) / sum(one.seconds for one in parts))
    return found


def _over_rounds(values: list[float]) -> Figure | None:
    """The median, and from the slowest to the fastest round."""
    if len(values) < 2:
        return Figure(values[0]) if values else None
    return Figure(median(values), min(values), max(values))


def task_rows(result: Result) -> list[Row]:
    """A row for each task, temperature and arm: how fast, with which drafts, and whether the text is the same."""
    return [
        {
            **_named(cell),
            **_speed(result, cell),
            **_drafts(cell),
            "same text": _same_text(result, cell),
            **_counts(cell),
        }
        for cell in by_task(result)
    ]


def wait_rows(result: Result) -> list[Row]:
    """What a reader waits for, over everything and by task."""
    rows: list[Row] = []
    for cell in (*overall(result), *by_task(result)):
        row = dict(_named(cell))
        for metric, name in _LATENCIES:
            found = cell.metrics.get(metric)
            row |= {f"{name} {p}": None if found is None else _figure(getattr(found, p)) for p in PERCENTILES}
        row["slow pauses"] = cell.num_slow_gaps
        if "queue_ms" in cell.metrics:  # only gateways of ours tell
            row["queue ms p50"] = p50(cell, "queue_ms")
        rows.append(row if result.slo is None else row | {"within SLO": _figure(cell.share_within_slo)})
    return rows


def against_rows(found: Sequence[Against]) -> list[Row]:
    """Ratios of one arm over another by task and temperature; whether an interval is without 1 is for the reader."""
    rows: list[Row] = []
    for one in found:
        row: _Cells = {"arm": one.arm, "over": one.base, "task": one.task or "all", "T": _heat(one.temperature)}
        row |= {f"{metric} ratio": _figure(one.ratios.get(metric)) for metric in _COMPARED}
        rows.append(row | {"same text": _same(one), "pairs": one.num})
    return rows


def error_rows(result: Result) -> list[Row]:
    """What failed, the most frequent first."""
    failed = [record for record in result.records if record.error is not None]
    kinds = Counter((record.arm, record.status, (record.error or "")[:_MOST_CHARS]) for record in failed)
    return [
        {"arm": arm, "status": None if status is None else str(status), "times": times, "error": error}
        for (arm, status, error), times in kinds.most_common(_MOST_ERRORS)
    ]


def overall(result: Result) -> list[Cell]:
    """One cell for each arm, over all its answers."""
    return [cell for arm in result.arms if (cell := result.cell(arm.name)) is not None]


def by_task(result: Result) -> list[Cell]:
    """Cells of one task and temperature, arms together."""
    cells = [cell for cell in result.cells if cell.task is not None]
    order = list(dict.fromkeys((cell.task, cell.temperature) for cell in cells))
    arms = [arm.name for arm in result.arms]
    return sorted(cells, key=lambda cell: (order.index((cell.task, cell.temperature)), arms.index(cell.arm)))


def p50(cell: Cell, metric: Metric) -> Figure | None:
    """The median of a metric, with its interval; None when it was not measured."""
    found = cell.metrics.get(metric)
    return None if found is None else _figure(found.p50)


def _figure(found: Estimate | None) -> Figure | None:
    """Without an interval where it would promise too much."""
    if found is None:
        return None
    return Figure(found.value, found.low, found.high) if found.has_interval else Figure(found.value)


def temperature(cell: Cell) -> str:
    """In words."""
    return _heat(cell.temperature)


def _heat(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _named(cell: Cell) -> _Cells:
    return {"task": cell.task or "all", "T": temperature(cell), "arm": cell.arm}


def _against(result: Result, cell: Cell) -> Against | None:
    """None for the first arm, which the others are held against."""
    wanted = (cell.arm, cell.task, cell.temperature)
    return next((one for one in result.against if (one.arm, one.task, one.temperature) == wanted), None)


def _speed(result: Result, cell: Cell) -> _Cells:
    row: _Cells = {"tokens/s of each": p50(cell, "tokens_per_s")}
    if len(result.arms) > 1:
        found = _against(result, cell)
        ratio = None if found is None else found.ratios.get("tokens_per_s")
        row[f"/ {result.arms[0].name}"] = _figure(ratio)
    return row


def _same_text(result: Result, cell: Cell) -> str | None:
    found = _against(result, cell)
    return None if found is None else _same(found)


def _same(found: Against) -> str | None:
    return f"{found.num_same_text} of {found.num_compared_text}" if found.num_compared_text else None


def _drafts(cell: Cell) -> _Cells:
    """Dashes for an arm that did not speculate: missing is not zero."""
    return {
        "accept length": _figure(cell.accept_length),
        "drafter and k": _plans(cell),
        "drafts": cell.num_proposed,
        "wasted": cell.num_wasted,
    }


def _plans(cell: Cell) -> str | None:
    """The most frequent; a policy that learns tries many."""
    found = [f"{plan} ×{num}" for plan, num in cell.plans.items()]
    more = len(found) - _MOST_PLANS
    return ", ".join([*found[:_MOST_PLANS], *([f"{more} more"] if more > 0 else [])]) or None


def _counts(cell: Cell) -> _Cells:
    return {"requests": cell.num_requests, "failed": cell.num_failed}
