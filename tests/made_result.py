"""Results of runs that nobody made, for the tests of what is made of them; figures are computed from the records."""

from __future__ import annotations

import random
from functools import cache

from outrider.core import Observed, WirePlan
from outrider.workloads.figures import against, cells_of
from outrider.workloads.results import Arm, Generator, Record, Result, Slo, Step, Stretch

#: Text that would be a tag, a script or a row of a table if it were not escaped.
NASTY = '<script>alert("x")</script> | <img src=x onerror=alert(1)> & `code`'
TASKS = (("code", 0.0), ("quote", 0.0), ("chat", 0.7), (NASTY, 1.2))
ROUNDS, JOBS = 3, 6
SLO = Slo(ttft_ms=150)


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


@cache
def made_result(arms: tuple[str, ...] = ("off", "policy", "ngram k=4"), *, with_error: bool = True) -> Result:
    """Four tasks, one of which has a name that is markup; the last arm fails once."""
    rng = random.Random(5)
    records = [record(arm, i, number, rng) for number in range(ROUNDS) for arm in arms for i in range(2 * JOBS)]
    records += [failed(arms[-1])] if with_error else []
    by_arm = {arm: [one for one in records if one.arm == arm] for arm in arms}
    stretches = []
    for arm, found in by_arm.items():
        for number in range(ROUNDS):
            mine = [one for one in found if one.round == number]
            seconds, num_tokens = max(one.end_s for one in mine), sum(one.num_tokens or 0 for one in mine)
            stretches.append(
                Stretch(
                    arm=arm, round=number, seconds=seconds, num_requests=len(mine), num_tokens=num_tokens,
                    good_per_s=0.9,
                )
            )  # fmt: skip
    return Result(
        suite="smoke", suite_digest="a1b2c3", arrivals="closed loop of 4", seed=7, is_complete=True,
        slo=SLO, conditions={"command": f"outrider bench run smoke {NASTY}", "cpu": "Some CPU"},
        arms=[Arm(name=arm, target="embedded", hints={"k": 4} if "k=" in arm else {}) for arm in arms],
        generator=Generator(lag_p99_ms=1.5, late_p99_ms=0.7, cpu_share=0.21, is_bottleneck=False),
        stretches=stretches, cells=cells_of(records, SLO),
        against=[found for arm in arms[1:] for found in against(by_arm[arm], by_arm[arms[0]])], records=records,
        notes=[f"a note with {NASTY}"],
    )  # fmt: skip
