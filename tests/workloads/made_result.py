"""Results of runs that nobody made, for the tests of what is made of them: sums and estimates follow the records."""

from __future__ import annotations

import random
from collections import Counter
from statistics import mean, quantiles

from outrider.core import Observed, WirePlan
from outrider.workloads.results import (
    Against,
    Arm,
    Cell,
    Distribution,
    Estimate,
    Generator,
    Metric,
    Record,
    Result,
    Slo,
    Step,
    Stretch,
)

#: Text that would be a tag, a script or a row of a table if it were not escaped.
NASTY = '<script>alert("x")</script> | <img src=x onerror=alert(1)> & `code`'
TASKS = (("code", 0.0), ("quote", 0.0), ("chat", 0.7), (NASTY, 1.2))
ROUNDS, JOBS = 3, 6


def record(arm: str, number: int, turn: int, rng: random.Random) -> Record:
    task, temperature = TASKS[number % len(TASKS)]
    is_fast = arm != "off" and temperature < 1
    at, steps = number * 0.4, [Step(at_s=number * 0.4 + rng.uniform(0.05, 0.2), num_tokens=1)]
    while sum(step.num_tokens or 0 for step in steps) < 40:
        at = steps[-1].at_s + rng.uniform(0.02, 0.035)
        steps.append(Step(at_s=at, num_tokens=rng.choice((1, 2, 5)) if is_fast else 1))
    histogram = [sum((step.num_tokens or 0) == i + 1 for step in steps[1:]) for i in range(5)]
    num_steps, num_accepted = sum(histogram), sum(i * n for i, n in enumerate(histogram))
    observed = Observed(
        num_verify_steps=num_steps, num_proposed=4 * num_steps, num_accepted=num_accepted,
        accept_length=1 + num_accepted / num_steps, accepted_histogram=histogram,
    )  # fmt: skip
    return Record(
        arm=arm, round=turn, number=number, prompt=f"{task}-{number}", task=task, temperature=temperature,
        max_tokens=48, intended_s=number * 0.4, sent_s=number * 0.4, steps=steps, end_s=at, status=200,
        num_tokens=sum(step.num_tokens or 0 for step in steps), finish_reason="length",
        effective=WirePlan(drafter="ngram", k=4) if is_fast else WirePlan(drafter="off", k=0),
        observed=observed if is_fast else None, text=f"the text of {number}",
    )  # fmt: skip


def failed(arm: str) -> Record:
    return Record(
        arm=arm, round=0, number=99, prompt="p", task="code", temperature=0.0, max_tokens=48, intended_s=1.0,
        sent_s=1.0, end_s=2.0, status=503, error=NASTY,
    )  # fmt: skip


def distribution(values: list[float]) -> Distribution:
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    figures = {"mean": mean(values)}
    for name in Distribution.model_fields:
        if name.startswith("p"):
            figures[name] = cuts[int(name[1:]) - 1]
    spread = 0.05 * mean(values)
    estimates = {name: Estimate(value=v, low=v - spread, high=v + spread) for name, v in figures.items()}
    return Distribution(num=len(values), **estimates)


def cell(arm: str, records: list[Record], task: str | None = None, temperature: float | None = None) -> Cell:
    done = [one for one in records if one.error is None]
    seen = [one.observed for one in done if one.observed is not None]
    values: dict[Metric, list[float]] = {
        "ttft_ms": [1e3 * (one.steps[0].at_s - one.intended_s) for one in done],
        "gap_ms": [1e3 * (b.at_s - a.at_s) for one in done for a, b in zip(one.steps, one.steps[1:], strict=False)],
        "tokens_per_s": [((one.num_tokens or 0) - 1) / (one.end_s - one.steps[0].at_s) for one in done],
        "tokens_per_step": [(one.num_tokens or 0) / len(one.steps) for one in done],
    }
    num_steps = sum(one.num_verify_steps for one in seen)
    num_accepted = sum(one.num_accepted for one in seen)
    length = 1 + num_accepted / num_steps if num_steps else None
    return Cell(
        arm=arm, task=task, temperature=temperature, num_requests=len(records), num_failed=len(records) - len(done),
        num_tokens=sum(one.num_tokens or 0 for one in done),
        metrics={name: distribution(found) for name, found in values.items() if found}, num_slow_gaps=1,
        accept_length=None if length is None else Estimate(value=length, low=length - 0.1, high=length + 0.1),
        num_accepted=num_accepted if seen else None,
        num_proposed=sum(one.num_proposed or 0 for one in seen) if seen else None,
        accepted_histogram=[sum(found) for found in zip(*(one.accepted_histogram for one in seen), strict=True)],
        plans=dict(Counter(f"{p.drafter} k={p.k}" if p.k else "off" for one in done if (p := one.effective))),
        share_within_slo=Estimate(value=0.9, low=0.8, high=1.0),
    )  # fmt: skip


def against_first(by_arm: dict[str, list[Record]], arm: str, task: str | None, temperature: float | None) -> Against:
    """Of the arm's first requests, one has another text."""
    num = sum(task in (None, one.task) for one in by_arm[arm])
    return Against(
        arm=arm, task=task, temperature=temperature, base=next(iter(by_arm)), num=num,
        ratios={"tokens_per_s": Estimate(value=2.5 if temperature == 0 else 1.1, low=1.0, high=3.0)},
        num_same_text=num - 1 if temperature == 0 else None, num_compared_text=num if temperature == 0 else 0,
    )  # fmt: skip


def made_result(arms: tuple[str, ...] = ("off", "policy", "ngram k=4"), *, with_error: bool = True) -> Result:
    """Four tasks, one of which has a name that is markup; the last arm fails once."""
    rng = random.Random(5)
    records = [record(arm, i, number, rng) for number in range(ROUNDS) for arm in arms for i in range(2 * JOBS)]
    records += [failed(arms[-1])] if with_error else []
    by_arm = {arm: [one for one in records if one.arm == arm] for arm in arms}
    cells = [cell(arm, found) for arm, found in by_arm.items()]
    for task, temperature in TASKS:
        cells += [
            cell(arm, [one for one in found if one.task == task], task, temperature) for arm, found in by_arm.items()
        ]
    against = [against_first(by_arm, arm, task, t) for arm in arms[1:] for task, t in (*TASKS, (None, None))]
    stretches = []
    for arm, found in by_arm.items():
        for number in range(ROUNDS):
            mine = [one for one in found if one.round == number]
            seconds, num_tokens = max(one.end_s for one in mine), sum(one.num_tokens or 0 for one in mine)
            stretches.append(
                Stretch(
                    arm=arm, round=number, seconds=seconds, num_requests=len(mine), num_tokens=num_tokens,
                    tokens_per_s=num_tokens / seconds, requests_per_s=len(mine) / seconds, good_per_s=0.9,
                )
            )  # fmt: skip
    return Result(
        suite="smoke", suite_digest="a1b2c3", arrivals="closed loop of 4", seed=7, is_complete=True,
        slo=Slo(ttft_ms=500), conditions={"command": f"outrider bench run smoke {NASTY}", "cpu": "Some CPU"},
        arms=[Arm(name=arm, target="embedded", hints={"k": 4} if "k=" in arm else {}) for arm in arms],
        generator=Generator(lag_p99_ms=1.5, late_p99_ms=0.7, cpu_share=0.21, is_bottleneck=False),
        stretches=stretches, cells=cells, against=against, records=records, notes=[f"a note with {NASTY}"],
    )  # fmt: skip
