"""A run of a suite: every arm answers the same jobs in interleaved rounds, and what came becomes a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from outrider.workloads.figures import against, cells_of, is_within
from outrider.workloads.filler import CHARS_PER_TOKEN
from outrider.workloads.ledger import Ledger
from outrider.workloads.results import Arm, Record, Result, Slo, Stretch
from outrider.workloads.rounds import Rounds
from outrider.workloads.stretch import Due, Turn, run_stretch
from outrider.workloads.suite import Suite
from outrider.workloads.target import Target
from outrider.workloads.watch import Seen, judged

Progress = Callable[[str, float], None]
"""Takes what is being done and a share in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Side:
    """An arm and the connected target that answers for it."""

    arm: Arm
    target: Target


class Bench:
    """One run; what it has done is in the ledger."""

    def __init__(self, suite: Suite, ledger: Ledger, progress: Progress) -> None:
        self._suite, self._ledger, self._progress = suite, ledger, progress
        self._rounds = Rounds(suite)
        self._warm: set[str] = set()
        """Names of targets that have read the prompts."""

    async def run(self, sides: Sequence[Side]) -> None:
        """All rounds, each beginning with another arm; jobs that the ledger has are not asked again."""
        total = self._suite.num_requests * len(sides) * self._suite.rounds
        self._end_cut_off()
        for number in range(self._suite.rounds):
            first = number % len(sides)
            for side in (*sides[first:], *sides[:first]):
                done = self._ledger.done(side.arm.name)
                dues = self._rounds.dues(side.arm.name, number)
                if left := [due for due in dues if (number, due.number) not in done]:
                    await self._warm_up(side.target)
                    await self._stretch(side, number, left, total)

    def _end_cut_off(self) -> None:
        """What a killed process did of a stretch is one, too."""
        known = sum(one.num_requests for one in self._ledger.stretches)
        if left := self._ledger.records[known:]:
            self._ledger.stretch_ended(_summed(left[0].arm, left[0].round, left, Seen()))

    async def _warm_up(self, target: Target) -> None:
        """Every prompt once to a target, a token each, so that no arm pays for what the next finds cached.

        Prompts that are made longer differ by arm; of those only two, for what a server does at its first ones.
        """
        if target.name in self._warm:
            return
        self._warm.add(target.name)
        dues = self._rounds.dues("warm-up", 0)[: 2 if self._rounds.is_lengthened else None]
        jobs = list({due.job.name: due.job for due in dues}.values())
        for i, job in enumerate(jobs):
            self._progress(f"warm-up: {target.name}", i / len(jobs))
            body: dict[str, Any] = {"messages": job.messages, "temperature": 0, "max_tokens": 1}
            if job.tools:
                body["tools"] = [tool.wire for tool in job.tools]
            await target.ask(body)  # what fails here fails in the run too, and is counted there

    async def _stretch(self, side: Side, number: int, dues: list[Due], total: int) -> None:
        """In the ledger also when it is stopped, as far as it came."""
        first, arrivals = len(self._ledger.records), self._suite.arrivals
        done = {(one.arm, one.round, one.number) for one in self._ledger.records}

        def job_ended(records: list[Record]) -> None:
            self._ledger.job_ended(records)
            done.add((side.arm.name, number, records[0].number))
            self._progress(f"round {number + 1} of {self._suite.rounds}: {side.arm.name}", len(done) / total)

        # In what is left of an interrupted round the first request is due at once.
        start_s = dues[0].at_s or 0.0
        dues = [Due(due.number, due.job, None if due.at_s is None else due.at_s - start_s) for due in dues]
        turn = Turn(side.target, side.arm, number, self._suite.seed, self._suite.is_exact_length, job_ended)
        seen = Seen()
        try:
            await run_stretch(turn, seen, dues, arrivals.concurrency if arrivals.kind == "closed" else None)
        finally:
            if records := self._ledger.records[first:]:
                self._ledger.stretch_ended(_summed(side.arm.name, number, records, seen))


def _summed(arm: str, number: int, records: Sequence[Record], seen: Seen) -> Stretch:
    counts = [one.num_tokens for one in records if one.error is None]
    return Stretch(
        arm=arm, round=number, seconds=max(one.end_s for one in records), num_requests=len(records),
        num_tokens=None if None in counts else sum(num or 0 for num in counts),
        lag_p99_ms=seen.lag_p99_ms, late_p99_ms=seen.late_p99_ms, cpu_share=seen.cpu_share,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stated:
    """What a result says beside what was measured."""

    conditions: Mapping[str, Any]
    slo: Slo | None = None
    notes: Sequence[str] = ()


def result_of(suite: Suite, ledger: Ledger, stated: Stated) -> Result:
    """Of what the ledger has, be it complete or not; arms beyond the first are held against it."""
    records, slo, arms = ledger.records, stated.slo, ledger.head.arms
    by_arm = {arm.name: [one for one in records if one.arm == arm.name] for arm in arms}
    # Rounds beyond those that are asked for now do not make up for others.
    num_jobs = sum(number < suite.rounds for arm in arms for number, _ in ledger.done(arm.name))
    wanted = sum(len(Rounds(suite).dues(arm.name, number)) for arm in arms for number in range(suite.rounds))
    base = by_arm[arms[0].name]
    return Result(
        suite=suite.name, suite_digest=suite.digest, arrivals=str(suite.arrivals), seed=suite.seed,
        is_complete=num_jobs >= wanted, slo=slo, conditions=dict(stated.conditions), arms=list(arms),
        generator=judged(ledger.stretches),
        stretches=[_with_good(one, ledger, slo) for one in ledger.stretches],
        cells=cells_of(records, slo),
        against=[found for arm in arms[1:] for found in against(by_arm[arm.name], base)],
        records=records, notes=[*stated.notes, *_notes(suite, ledger, wanted - num_jobs)],
    )  # fmt: skip


def _with_good(stretch: Stretch, ledger: Ledger, slo: Slo | None) -> Stretch:
    """The same for all parts of one stretch."""
    if slo is None:
        return stretch
    turn = stretch.arm, stretch.round
    seconds = sum(one.seconds for one in ledger.stretches if (one.arm, one.round) == turn)
    good = sum(is_within(one, slo) for one in ledger.records if (one.arm, one.round) == turn)
    return stretch.model_copy(update={"good_per_s": good / seconds})


def _notes(suite: Suite, ledger: Ledger, num_missing: int) -> list[str]:
    notes = []
    if num_missing:
        notes.append(f"{num_missing} jobs are missing: the same command with the same folder goes on")
    if Rounds(suite).is_lengthened:
        counts = [one.num_prompt_tokens for one in ledger.records if one.num_prompt_tokens and not one.turn]
        seen = f"; the target counted {median(counts):.0f} at the median" if counts else ""
        notes.append(
            f"prompts were made longer by text of our own, at {CHARS_PER_TOKEN:g} characters a token, another for "
            f"each arm{seen}"
        )
    if suite.arrivals.kind == "trace" and not suite.is_exact_length:
        notes.append("answers may end before the length that the trace has; --exact-length asks for all of it")
    if failures := sorted({one.error for one in ledger.records if one.error is not None}):
        notes.append(f"failed: {'; '.join(failures[:5])}")
    return notes
