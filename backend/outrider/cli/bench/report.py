"""From samples to rows and the JSON file, of `outrider bench engine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median

from outrider.cli.bench.aims import aim_rows, aims
from outrider.cli.bench.formula import formula_rows
from outrider.cli.bench.measure import Results
from outrider.cli.bench.samples import (
    SETTING_OFF,
    BatchSample,
    Sample,
    Samples,
    Setting,
    accept_length,
    first_difference,
)
from outrider.cli.bench.show import Row
from outrider.cli.bench.visits import POLICY
from outrider.core import DRAFTERS, OFF


def parts(results: Results) -> dict[str, list[Row]]:
    """Rows of every table for which something was measured, by title."""
    samples = Samples(results.samples)
    if POLICY in samples.settings:
        return {"decode speed, one request at a time": task_rows(samples)}
    found = {
        "a step without speculation": step_rows(results),
        "its operators, milliseconds a step": operator_rows(results),
        "tokens per second by batch size": batch_rows(results.batch),
        "median tokens per second, one request at a time": group_rows(samples),
        "drafters by k, against off on the same prompts": drafter_rows(samples),
        "the speed-up formula against what was measured": formula_rows(samples),
        "greedy text of other programs against ours": agreement_rows(samples),
        "aims": aim_rows(aims(results)),
    }
    return {title: rows for title, rows in found.items() if rows}


def as_json(results: Results, conditions: Mapping[str, object]) -> Row:
    """All that was measured, down to each answer."""
    samples = Samples(results.samples)
    return {
        "conditions": conditions,
        "tables": parts(results),
        "prompts": [asdict(case) for case in samples.cases],
        "samples": [sample.as_dict() for sample in samples.all],
        "batches": [asdict(sample) for sample in results.batch],
    }


def step_rows(results: Results) -> list[Row]:
    """One row: where the time of a plain step goes; none when that was not measured."""
    step = results.anatomy
    if step is None:
        return []
    return [
        {
            "step ms": step.step_s * 1e3,
            "reading the weights ms": step.read_s * 1e3,
            "step / reading": step.step_s / step.read_s,
            "medians": f"{step.median_step_s * 1e3:.1f} / {step.median_read_s * 1e3:.1f}",
            "operators": step.num_operators,
            "operators ms": step.operators_s * 1e3,
            "Python ms": step.python_s * 1e3,
            "Python share": step.python_share,
        }
    ]


def operator_rows(results: Results) -> list[Row]:
    """The operators that take most of a step, in milliseconds."""
    top = [] if results.anatomy is None else results.anatomy.top
    return [{"operator": name, "ms": seconds * 1e3} for name, seconds in top]


def batch_rows(batches: Sequence[BatchSample]) -> list[Row]:
    """Medians over rounds by size and setting, and against a batch of one."""
    speeds: dict[tuple[Setting, int], list[float]] = {}
    for batch in batches:
        speeds.setdefault((batch.setting, batch.size), []).append(batch.tokens_per_s)
    rows: dict[int, Row] = {}
    for (setting, size), found in speeds.items():
        row = rows.setdefault(size, {"batch": size})
        row[f"{setting} tok/s"] = median(found)
        row[f"{setting} / batch 1"] = median(found) / median(speeds[setting, 1])
    return list(rows.values())


def group_rows(samples: Samples) -> list[Row]:
    """One row per group, and all: each arm at the k that gains most over the whole run."""
    arms = list(dict.fromkeys(setting.arm for setting in samples.settings))
    settings = [best for arm in arms if (best := samples.best(arm)) is not None]
    rows: list[Row] = []
    for group in [*samples.groups, None] if samples else []:
        part = samples if group is None else samples.in_groups([group])
        best = part.best_of(DRAFTERS)
        row: Row = {"group": group or "all", "prompts": len(part.cases)}
        row |= {str(setting): part.speed(setting) for setting in settings}
        gain = None if best is None else part.ratio(best, SETTING_OFF)
        rows.append(row | {"best": str(best or "-"), "best / off": gain})
    return rows


def drafter_rows(samples: Samples) -> list[Row]:
    """A row for each drafter and k, over all cases."""
    return [
        {
            "drafter": setting.arm,
            "k": setting.k,
            "best": setting == samples.best(setting.arm),
            "answers": len(samples.of(setting)),
            "accept length": accept_length(samples.of(setting)),
            "tok/s": samples.speed(setting),
            "/ off": samples.ratio(setting, SETTING_OFF),
            "same text": _same_text(samples, setting),
        }
        for setting in samples.settings
        if setting.arm in DRAFTERS
    ]


def agreement_rows(samples: Samples) -> list[Row]:
    """How far the greedy answers of others, which keep other weights or round otherwise, are ours."""
    rows: list[Row] = []
    for setting in samples.settings:
        if setting.arm in (OFF, *DRAFTERS):
            continue
        pairs = {theirs.case: (theirs, ours) for theirs, ours in samples.beside(setting, SETTING_OFF)}
        firsts = [first_difference(theirs.token_ids, ours.token_ids) for theirs, ours in pairs.values()]
        differing = [first for first in firsts if first is not None]
        rows.append(
            {
                "arm": str(setting),
                "answers": len(firsts),
                "identical": len(firsts) - len(differing),
                "median tokens until the first difference": median(differing) if differing else None,
            }
        )
    return rows


def task_rows(samples: Samples) -> list[Row]:
    """A row per task and temperature, and all: tokens/s of each arm, ratios on equal tokens, whether texts agree."""
    tasks = [(task, samples.in_groups([task])) for task in samples.groups]
    parts = [(task, part.at(temperature)) for task, part in tasks for temperature in part.temperatures]
    return [_task_row(task, part) for task, part in (*parts, ("all", samples))]


def _task_row(task: str, samples: Samples) -> Row:
    off, theirs = SETTING_OFF, Setting("hf")
    ran = samples.of(POLICY)
    return {
        "task": task,
        "T": _span(samples.temperatures),
        "drafter": "/".join(sorted({s.drafter for s in ran})),
        "k": _span([s.k for s in ran]),
        "accept length": accept_length(ran),
        **{f"{arm.arm} tok/s": _pooled_speed(samples.of(arm)) for arm in (theirs, off, POLICY)},
        "off/hf": samples.ratio(off, theirs),
        "policy/off": samples.ratio(POLICY, off),
        "same text": _same_text(samples, POLICY),
    }


def _same_text(samples: Samples, setting: Setting) -> str | None:
    """Of how many pairs with off both wrote the same; None when there is no pair."""
    pairs = samples.beside(setting, SETTING_OFF)
    return f"{sum(a.token_ids == b.token_ids for a, b in pairs)} of {len(pairs)}" if pairs else None


def _pooled_speed(samples: Sequence[Sample]) -> float | None:
    """Tokens per second over all prompts, each with the median decode time of its rounds."""
    decoded: dict[str, list[tuple[int, float]]] = {}
    for sample in samples:
        found = sample.decode()
        if found is not None:
            decoded.setdefault(sample.case.name, []).append(found)
    seconds = sum(median(s for _, s in rounds) for rounds in decoded.values())
    return sum(rounds[0][0] for rounds in decoded.values()) / seconds if seconds else None


def _span(values: Sequence[float]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g}-{high:g}"
