"""Runs the visits, the batch sweep and the anatomy of a step within a time budget; what is done is never lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outrider.cli.bench.ours import EngineArm, plan_of
from outrider.cli.bench.samples import SETTING_OFF, BatchSample, Case, Sample, Setting
from outrider.cli.bench.visits import POLICY, Visit

if TYPE_CHECKING:
    from outrider.engine.anatomy import Anatomy

Progress = Callable[[str, float], None]
#: Answers a case, given in our prompt tokens; None when it cannot.
Other = Callable[[Case, tuple[int, ...], Setting], Sample | None]
BATCH_SIZES = (1, 2, 4, 8, 16)
BATCH_SETTINGS = (SETTING_OFF, Setting("ngram", 3))
#: Share of the time that the batch sweep may take beyond its first round, and its rounds at most.
BATCH_SHARE, BATCH_ROUNDS = 0.15, 3
#: Prompts longer than this would make a sweep one of prompt reading.
MAX_BATCH_PROMPT = 1000
ANATOMY_STEPS = 40


@dataclass(slots=True)
class Results:
    """What a run has measured so far."""

    samples: list[Sample] = field(default_factory=list)
    batch: list[BatchSample] = field(default_factory=list)
    anatomy: Anatomy | None = None
    num_visits: int = 0
    num_planned: int = 0
    is_interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""
    decided_by: dict[str, object] = field(default_factory=dict)
    """What the engine and its policy knew of costs and acceptance."""


@dataclass(slots=True)
class Arms:
    """Loaded models: our engine, and what answers for other programs, by arm."""

    ours: EngineArm
    others: dict[str, Other] = field(default_factory=dict)

    def answer(self, visit: Visit, setting: Setting, off: Sample | None) -> Sample | None:
        """None when this arm cannot answer this case. Predictions are made of `off`, which answers it too."""
        case, number = visit.case, visit.round
        if setting.arm in self.others:
            return self.others[setting.arm](case, self.ours.encode(case), setting)
        if setting == POLICY:
            return self.ours.run(case, setting, self.ours.decider.decide(case).plan, number)
        answer = off.token_ids if off is not None and setting.arm == "prediction" else None
        return self.ours.run(case, setting, plan_of(setting), number, answer)


class Clock:
    """The time budget of a run, and its progress."""

    def __init__(self, minutes: float, progress: Progress) -> None:
        self.minutes = minutes
        self._start_s = time.monotonic()
        self._progress = progress

    @property
    def share(self) -> float:
        """Of the budget that is used up."""
        return (time.monotonic() - self._start_s) / (60.0 * self.minutes)

    def show(self, what: str) -> None:
        """Tell what is being done, and how much of the time is spent."""
        self._progress(what, min(self.share, 1.0))


def measure_visits(arms: Arms, visits: Sequence[Visit], clock: Clock, results: Results) -> None:
    """Answer cases until the time is over; the first visit is always made."""
    results.num_planned = len(visits)
    for visit in visits:
        off: Sample | None = None
        for setting in visit.settings:
            if clock.share >= 1.0 and results.num_visits:
                return
            clock.show(f"{visit.case.name}: {setting}")
            try:
                answered = arms.answer(visit, setting, off)
            except (RuntimeError, ValueError) as error:
                if setting.arm not in arms.others:
                    raise
                results.notes.append(f"{setting} failed on {visit.case.name}: {error}")
                continue
            if answered is not None:
                results.samples.append(answered)
            if setting == SETTING_OFF:
                off = answered
        results.num_visits += 1


def measure_batches(ours: EngineArm, cases: Sequence[Case], clock: Clock, results: Results) -> None:
    """Rounds over all sizes; requests of a batch differ as far as there are prompts."""
    short = [case for case in cases if len(case.text) <= MAX_BATCH_PROMPT]
    start = clock.share
    for number in range(BATCH_ROUNDS):
        for size in BATCH_SIZES:
            for setting in BATCH_SETTINGS:
                if number and clock.share - start > BATCH_SHARE:
                    return
                clock.show(f"batch of {size}: {setting}")
                batch = [short[i % len(short)] for i in range(size)]
                results.batch.append(BatchSample(setting, size, ours.batch(batch, setting)))


def measure_step(ours: EngineArm, case: Case, clock: Clock, results: Results) -> None:
    """What a step without speculation takes, against reading the weights."""
    from outrider.engine.anatomy import step_anatomy

    clock.show("anatomy of a step")
    results.anatomy = step_anatomy(ours.engine, ours.encode(case), ANATOMY_STEPS)


def warm_up(arms: Arms, case: Case, settings: Sequence[Setting]) -> None:
    """One short answer of every arm, which counts for nothing."""
    short = Visit(Case("warm-up", case.group, case.text, 0.0, 4), ())
    for setting in {setting.arm: setting for setting in settings if setting.arm != "prediction"}.values():
        arms.answer(short, setting, None)
