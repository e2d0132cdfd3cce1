"""From records to figures: what one request shows, and cells of them by arm, task and temperature."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, zip_longest
from typing import Any

from outrider.workloads.resample import Resample, Valued
from outrider.workloads.results import Against, Cell, Estimate, Metric, Record, Slo

#: A pause within an answer that a reader notices, in seconds; the gateway counts those too.
SLOW_GAP_S = 0.5
Key = tuple[int, int]
"""Round and number of a job."""


def key_of(record: Record) -> Key:
    """By which answers of several arms are compared: one job in one round."""
    return record.round, record.number


def ttft_ms(record: Record) -> float | None:
    """From the intended moment, so that requests that wait to be sent are not flattered (coordinated omission)."""
    return 1000 * (record.steps[0].at_s - record.intended_s) if record.steps else None


def latency_ms(record: Record) -> float | None:
    """From when it was meant to be sent to its end."""
    return 1000 * (record.end_s - record.intended_s)


def tpot_ms(record: Record) -> float | None:
    """Time per token after the first event; None when one event brought all, or tokens were not counted.

    Where the target does not count as it goes the first event stands for one token.
    """
    if len(record.steps) < 2 or record.num_tokens is None:
        return None
    num_tokens = record.num_tokens - (record.steps[0].num_tokens or 1)
    seconds = record.steps[-1].at_s - record.steps[0].at_s
    return 1000 * seconds / num_tokens if num_tokens > 0 and seconds > 0 else None


def tokens_per_s(record: Record) -> float | None:
    """Of one stream, after its first event; None where `tpot_ms` is."""
    found = tpot_ms(record)
    return None if found is None else 1000 / found


def tokens_per_step(record: Record) -> float | None:
    """None when tokens were not counted."""
    return record.num_tokens / len(record.steps) if record.steps and record.num_tokens else None


def queue_ms(record: Record) -> float | None:
    """What the server says that it waited; None when it says nothing."""
    return None if record.queue_s is None else 1000 * record.queue_s


def late_ms(record: Record) -> float | None:
    """How much later it was sent than it was meant to be."""
    return 1000 * (record.sent_s - record.intended_s)


def gaps_ms(record: Record) -> list[float]:
    """Pauses between events of one answer."""
    moments = [step.at_s for step in record.steps]
    return [1000 * (after - before) for before, after in pairwise(moments)]


ONE_EACH: dict[Metric, Callable[[Record], float | None]] = {
    "ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "latency_ms": latency_ms, "tokens_per_s": tokens_per_s,
    "tokens_per_step": tokens_per_step, "queue_ms": queue_ms, "late_ms": late_ms,
}  # fmt: skip


def is_within(record: Record, slo: Slo) -> bool:
    """A failed request keeps no promise; what an answer of one event cannot show is not held against it."""
    if record.error is not None:
        return False
    first, each = ttft_ms(record), tpot_ms(record)
    keeps_first = slo.ttft_ms is None or (first is not None and first <= slo.ttft_ms)
    return keeps_first and (slo.tpot_ms is None or each is None or each <= slo.tpot_ms)


def cells_of(records: Sequence[Record], slo: Slo | None) -> list[Cell]:
    """For every arm one of everything and one for each task and temperature."""
    cells = []
    for arm in dict.fromkeys(record.arm for record in records):
        own = [record for record in records if record.arm == arm]
        cells.append(_cell(arm, None, None, own, slo))
        parts = groups(own)
        cells += [_cell(arm, *part, members, slo) for part, members in parts.items()]
    return cells


def groups(records: Iterable[Record]) -> dict[tuple[str, float], list[Record]]:
    """By task and temperature, in the order in which they appear."""
    found: dict[tuple[str, float], list[Record]] = {}
    for record in sorted(records, key=lambda one: (one.round, one.number, one.turn)):
        found.setdefault((record.task, record.temperature), []).append(record)
    return found


def _cell(arm: str, task: str | None, temperature: float | None, records: list[Record], slo: Slo | None) -> Cell:
    good = [record for record in records if record.error is None]
    resample = Resample([key_of(record) for record in records])
    found: dict[Metric, Valued] = {
        metric: [(key_of(one), value) for one in good if (value := value_of(one)) is not None]
        for metric, value_of in ONE_EACH.items()
    }
    found["gap_ms"] = [(key_of(one), gap) for one in good for gap in gaps_ms(one)]
    spread = {metric: resample.distribution(valued) for metric, valued in found.items()}
    within = None if slo is None else [(key_of(one), float(is_within(one, slo))) for one in records]
    plans = Counter(_plan(one) for one in good if one.effective is not None)
    return Cell(
        arm=arm, task=task, temperature=temperature,
        num_requests=len(records), num_failed=len(records) - len(good),
        num_tokens=sum(one.num_tokens or 0 for one in good),
        metrics={metric: one for metric, one in spread.items() if one is not None},
        num_slow_gaps=sum(gap > 1000 * SLOW_GAP_S for _, gap in found["gap_ms"]),
        plans=dict(plans.most_common()),
        share_within_slo=None if within is None else resample.quotient(within, [(key, 1.0) for key, _ in within]),
        **_speculation(good, resample),
    )  # fmt: skip


def _plan(record: Record) -> str:
    plan = record.effective
    return "" if plan is None else f"{plan.drafter} k={plan.k}" if plan.k else plan.drafter


def _speculation(records: Sequence[Record], resample: Resample) -> dict[str, Any]:
    """Of those requests that were speculated; nothing when none was."""
    seen = [(key_of(one), one.observed) for one in records if one.observed is not None]
    if not seen:
        return {}
    steps = [(key, float(one.num_verify_steps)) for key, one in seen]
    accepted = [(key, float(one.num_accepted)) for key, one in seen]
    proposed = [one.num_proposed for _, one in seen]
    columns = zip_longest(*(one.accepted_histogram for _, one in seen), fillvalue=0)
    return {
        "accept_length": resample.quotient(accepted, steps, lambda share: 1 + share),
        "num_accepted": sum(one.num_accepted for _, one in seen),
        "num_proposed": None if None in proposed else sum(num or 0 for num in proposed),
        "accepted_histogram": [sum(column) for column in columns],
    }


def against(records: Sequence[Record], base: Sequence[Record]) -> list[Against]:
    """All that one arm answered against all of another: of everything, and by task and temperature.

    Requests are compared in pairs of one round, number and turn that both answered.
    """
    others = {(key_of(one), one.turn): one for one in base if one.error is None}
    pairs = [
        (one, others[key_of(one), one.turn])
        for one in records
        if one.error is None and (key_of(one), one.turn) in others
    ]
    if not pairs:
        return []
    parts = groups(one for one, _ in pairs)
    partner = {(key_of(one), one.turn): other for one, other in pairs}
    by_part = [(part, [(one, partner[key_of(one), one.turn]) for one in members]) for part, members in parts.items()]
    return [_against(None, None, pairs), *(_against(*part, members) for part, members in by_part)]


def _against(task: str | None, temperature: float | None, pairs: Sequence[tuple[Record, Record]]) -> Against:
    resample = Resample([key_of(one) for one, _ in pairs])
    ratios: dict[Metric, Estimate] = {}
    for metric, value_of in ONE_EACH.items():
        both = [(key_of(one), value_of(one), value_of(other)) for one, other in pairs]
        estimate = resample.median([(key, a / b) for key, a, b in both if a is not None and b])
        if estimate is not None and metric != "late_ms":
            ratios[metric] = estimate
    greedy = [(one, other) for one, other in pairs if one.temperature == 0 and one.asked == other.asked]
    return Against(
        arm=pairs[0][0].arm, base=pairs[0][1].arm, task=task, temperature=temperature, num=len(pairs), ratios=ratios,
        num_same_text=sum(one.text == other.text for one, other in greedy) if greedy else None,
        num_compared_text=len(greedy),
    )  # fmt: skip
