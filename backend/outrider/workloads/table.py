"""Results and comparisons as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.workloads.results import Against, Cell, Estimate, Metric, Result

#: Percentile shown of each metric, and its heading.
_SHOWN: tuple[tuple[Metric, str, str], ...] = (
    ("ttft_ms", "p50", "first token ms"), ("ttft_ms", "p99", "p99"), ("tpot_ms", "p50", "ms/token"),
    ("gap_ms", "p99", "gap p99 ms"), ("tokens_per_s", "p50", "tokens/s"), ("latency_ms", "p50", "latency ms"),
    ("queue_ms", "p50", "queue ms"),
)  # fmt: skip

_COMPARED: tuple[Metric, ...] = ("tokens_per_s", "ttft_ms", "tpot_ms", "latency_ms")


def markdown(result: Result) -> str:
    """All cells, each figure with its 95 % interval where there are enough jobs; arms against the first; notes."""
    parts = [f"# {result.suite}: {result.arrivals}", _table([_cell(one) for one in result.cells])]
    if len(result.arms) > 1:
        parts += [f"## Against {result.arms[0].name}", against_table(result.against)]
    notes = [*result.notes, *(f"the load generator was the bottleneck: {why}" for why in result.generator.reasons)]
    parts += [f"- {note}" for note in notes]
    parts.append("Conditions: " + ", ".join(f"{key} {value}" for key, value in result.conditions.items()))
    return "\n\n".join(parts)


def against_table(found: Sequence[Against]) -> str:
    """Ratios with their 95 % intervals; an interval without 1 is marked."""
    rows = []
    for one in found:
        row = {"arm": one.arm, "task": _task(one.task, one.temperature), "pairs": str(one.num)}
        for metric in _COMPARED:
            ratio = one.ratios.get(metric)
            row[f"{metric} ratio"] = "-" if ratio is None else _ratio(ratio)
        same = "-" if one.num_same_text is None else f"{one.num_same_text} of {one.num_compared_text}"
        rows.append(row | {"same greedy text": same})
    return _table(rows)


def _cell(cell: Cell) -> dict[str, str]:
    row = {"arm": cell.arm, "task": _task(cell.task, cell.temperature), "requests": str(cell.num_requests)}
    row["failed"] = str(cell.num_failed)
    for metric, percentile, heading in _SHOWN:
        found = cell.metrics.get(metric)
        row[heading] = "-" if found is None else _estimate(getattr(found, percentile))
    row["accept length"] = "-" if cell.accept_length is None else _estimate(cell.accept_length)
    row["wasted drafts"] = "-" if cell.num_wasted is None else f"{cell.num_wasted} of {cell.num_proposed}"
    row["plans"] = ", ".join(f"{plan} ({num})" for plan, num in cell.plans.items()) or "-"
    if cell.share_within_slo is not None:
        row["within SLO"] = _estimate(cell.share_within_slo)
    return row


def _task(task: str | None, temperature: float | None) -> str:
    return "all" if task is None else f"{task} T={temperature:g}"


def _estimate(found: Estimate) -> str:
    interval = f" ({_number(found.low)}-{_number(found.high)})" if found.has_interval else ""
    return _number(found.value) + interval


def _ratio(found: Estimate) -> str:
    if not found.has_interval:
        return f"{found.value:.2f}"
    mark = "" if found.low <= 1 <= found.high else " *"
    return f"{found.value:.2f} ({found.low:.2f}-{found.high:.2f}){mark}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return "Nothing was measured."
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---"] * len(columns), *([row.get(column, "-") for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
