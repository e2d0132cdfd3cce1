"""Puts the report into answers: our `outrider` object, vLLM's `metrics.speculative_decoding`, and the headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from outrider.core import SpecStats
from outrider.dispatch.run import Run
from outrider.runtimes.protocol import DETAILS, read_stats
from outrider.runtimes.splice import splice, splice_inside

_OURS = "x-outrider-"


def plan_headers(run: Run) -> dict[str, str]:
    """What every answer to a decided request carries, failures included."""
    decision, queued_s = run.decision, run.outcome.queued_s
    headers = _plan_headers(run.plan.drafter, run.plan.k, run.lane.name, decision.workload, decision.rule)
    return headers | {_OURS + "queue-ms": f"{1000 * queued_s:.3f}"}


@lru_cache(maxsize=256)
def _plan_headers(drafter: str, k: int, lane: str, workload: str, rule: str) -> dict[str, str]:
    values = {"drafter": drafter, "k": str(k), "lane": lane, "workload": workload, "rule": rule}
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
    others = _beside_stats(run, raw, chunk)
    if others is None:
        return raw
    if not others and chunk.get("choices") == [] and chunk.get("usage") is None:
        return None
    return splice(raw, {"sglext"}, others)


def _beside_stats(run: Run, raw: bytes, chunk: Mapping[str, Any]) -> dict[str, bytes] | None:
    """What is to stand in place of the member with the statistics, nothing or what else is in it; None: it stays."""
    sglext = chunk.get("sglext")
    if run.call.wants_stats or not isinstance(sglext, dict):
        return None
    has_others = any(value is not None for key, value in sglext.items() if key != DETAILS)
    return {"sglext": splice_inside(raw, "sglext", {DETAILS}, {})} if has_others else {}


def with_report(run: Run, raw: bytes, chunk: Mapping[str, Any] | None = None) -> bytes:
    """The last chunk or the whole body, with the report and, when there are any, the statistics in our form.

    Where `chunk` says what is in `raw`, it is also done what `without_stats` does, all at once.
    """
    others = None if chunk is None else _beside_stats(run, raw, chunk)
    add = {**(others or {}), "outrider": orjson.dumps(run.report())}
    stats = run.outcome.stats
    # vLLM leaves the object out for several choices, since the counts would not be one sequence's.
    if stats is not None and run.call.num_choices == 1:
        ours = {"speculative_decoding": orjson.dumps(_vllm_metrics(stats, run.plan.k))}
        add["metrics"] = splice_inside(raw, "metrics", set(ours), ours)
    if raw.lstrip().startswith(b"["):  # a batch of /generate: its last answer gets the report of all
        return splice(raw, (), add)
    return splice(raw, add.keys() if others is None else {"sglext", *add}, add, chunk)


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
