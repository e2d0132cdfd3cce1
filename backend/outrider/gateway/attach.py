"""Puts the report into answers: our `outrider` object, vLLM's `metrics.speculative_decoding`, and the headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from outrider.core import SpecStats
from outrider.dispatch.run import Run
from outrider.runtimes.protocol import DETAILS, read_stats
from outrider.runtimes.splice import splice, splice_inside

_OURS = "x-outrider-"


def plan_headers(run: Run) -> dict[str, str]:
    """What every answer to a decided request carries, failures included."""
    values = {
        "drafter": run.plan.drafter,
        "k": str(run.plan.k),
        "lane": run.lane.name,
        "workload": run.decision.workload,
        "rule": run.decision.rule,
        "queue-ms": f"{1000 * run.outcome.phases.get('admit', 0.0):.3f}",
    }
    return {_OURS + name: _printable(value) for name, value in values.items()}


def passed_headers(lane_headers: Mapping[str, str]) -> dict[str, str]:
    """The lane's own `x-outrider-*` headers."""
    return {name.lower(): value for name, value in lane_headers.items() if name.lower().startswith(_OURS)}


def _printable(value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    return "".join(char if " " <= char <= "~" else "?" for char in value)


def take_stats(run: Run, details: Sequence[Any] | None) -> None:
    """Hand the counts of all choices to the run; counts that contradict themselves are none, and None are no news."""
    if details is None:
        return
    try:
        run.saw_stats(read_stats(list(details)))
    except ValueError:
        run.saw_stats(None, is_contradictory=True)


def without_stats(run: Run, raw: bytes, chunk: Mapping[str, Any]) -> bytes | None:
    """`raw` as the client should see it: without the statistics, unless it asked for them itself.

    None when nothing is left that the client could miss.
    """
    sglext = chunk.get("sglext")
    if run.call.wants_stats or not isinstance(sglext, dict):
        return raw
    if any(value is not None for key, value in sglext.items() if key != DETAILS):
        return splice(raw, {"sglext"}, {"sglext": splice_inside(raw, "sglext", {DETAILS}, {})})
    if chunk.get("choices") == [] and chunk.get("usage") is None:
        return None
    return splice(raw, {"sglext"}, {})


def with_report(run: Run, raw: bytes) -> bytes:
    """The last chunk or the whole body, with the report and, when there are any, the statistics."""
    report = run.report().model_dump_json(exclude=None if run.call.hints.verbose else {"inputs"})
    add = {"outrider": report.encode()}
    stats = run.outcome.stats
    # vLLM leaves the object out for several choices, since the counts would not be one sequence's.
    if stats is not None and run.call.num_choices == 1:
        ours = {"speculative_decoding": orjson.dumps(_vllm_metrics(stats, run.plan.k))}
        add["metrics"] = splice_inside(raw, "metrics", set(ours), ours)
    is_batch = raw.lstrip().startswith(b"[")  # of /generate: its last answer gets the report of all
    return splice(raw, () if is_batch else set(add), add)


def _vllm_metrics(stats: SpecStats, k: int) -> dict[str, object]:
    """The fields of vLLM's per-request acceptance metrics; the histogram is dense, from 0 to k accepted drafts."""
    rate = stats.num_accepted / stats.num_proposed if stats.num_proposed else None
    return {
        "mean_acceptance_length": stats.accept_length,
        "draft_acceptance_rate": rate,
        "acceptance_histogram": [*stats.histogram, *[0] * (k + 1 - len(stats.histogram))],
        "num_spec_steps": stats.num_verify_steps,
        "num_accepted_draft_tokens": stats.num_accepted,
        "num_draft_tokens": stats.num_proposed,
        "num_spec_tokens": k,
    }
