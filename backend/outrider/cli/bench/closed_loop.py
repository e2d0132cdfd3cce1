"""Traffic on our engine in this process: always so many requests at once, each planned at the moment it starts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

from outrider.cli.bench.decider import Decider
from outrider.cli.bench.mix import Mix, Turn, limits, num_measured
from outrider.cli.bench.ours import SEED, EngineArm, plan_of
from outrider.cli.bench.samples import Case, Setting
from outrider.cli.bench.visits import POLICY
from outrider.core import SpecStats
from outrider.policy.learning import Feedback
from outrider.policy.plan import PLAN_OFF, Plan

if TYPE_CHECKING:
    from outrider.cli.bench.measure import Clock
    from outrider.engine.engine import Output
    from outrider.policy.decision import Decision
    from outrider.speculation.proposal import Proposal


@dataclass(slots=True)
class Request:
    """One request of a stretch, and what became of it so far."""

    case: Case
    plan: Plan
    decision: Decision | None = None
    """None for a fixed setting."""
    token_ids: list[int] = field(default_factory=list)
    near_ties: set[int] = field(default_factory=set)
    """Positions at which rounding decides, so that other company may give another text."""
    stats: SpecStats | None = None
    first_s: float = 0.0
    last_s: float = 0.0

    def take(self, output: Output, now_s: float) -> None:
        if not self.token_ids:
            self.first_s = now_s
        self.last_s = now_s
        self.token_ids.extend(output.token_ids)
        self.near_ties.update(output.near_ties)
        self.stats = output.stats

    @property
    def feedback(self) -> Feedback:
        return Feedback(self.stats, len(self.token_ids), self.last_s - self.first_s)


@dataclass(frozen=True, slots=True)
class Stretch:
    """One setting's traffic in one cell and round."""

    setting: Setting
    turn: Turn
    num_tokens: int
    """Of all requests together, while the clock ran."""
    seconds: float
    requests: tuple[Request, ...]
    """In the order in which they started; the last ones were cut off."""

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    def as_dict(self) -> dict[str, Any]:
        cell = self.turn.cell
        return {
            **self.setting._asdict(),
            "workload": cell.workload,
            "batch": cell.size,
            "no draft accepted": cell.is_hopeless,
            "round": self.turn.round,
            "num_tokens": self.num_tokens,
            "seconds": self.seconds,
            "requests": [
                {"case": r.case.name, **r.plan.to_wire(), "rule": r.decision and r.decision.rule,
                 "token_ids": r.token_ids, "near_ties": sorted(r.near_ties)}
                for r in self.requests
            ],
        }  # fmt: skip


class _Useless:
    """A drafter whose every proposal is full and wrong: a token that the model hardly ever writes."""

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id

    def observe(self, token_id: int) -> None:
        """What was written changes nothing."""

    def propose(self, k: int) -> Proposal:
        from outrider.speculation.proposal import PointMass

        return PointMass((self._token_id,) * k)

    def free(self) -> None:
        """Holds nothing."""


class ClosedLoop:
    """One engine and two policies, which learn from what they decided: of the mix, and of useless drafters."""

    def __init__(self, ours: EngineArm) -> None:
        self._ours = ours
        self._deciders = {False: ours.decider, True: Decider(ours)}

    def run(self, turn: Turn, setting: Setting) -> Stretch:
        """Traffic until enough tokens have come. The clock starts when each of the first requests has begun to write;
        what is cut off at the end teaches the policy nothing.

        All settings are given the same requests in the same order, with the same noise, and so write the same text.
        """
        from outrider.engine.sequence import Finish

        engine, size = self._ours.engine, turn.cell.size
        max_tokens = turn.cases[0].max_tokens
        asked = zip(cycle(turn.cases), limits(size, max_tokens), strict=False)
        started: list[Request] = []
        running: dict[str, Request] = {}
        num_tokens, num_wanted, start_s = 0, num_measured(size, max_tokens), 0.0
        while num_tokens < num_wanted:
            while len(running) < size:
                running[f"bench-{len(started)}"] = request = self._start(turn, setting, len(started), asked)
                started.append(request)
            outputs = engine.step()
            now_s = time.perf_counter()
            for output in outputs:
                running[output.rid].take(output, now_s)
                if output.finish is not None:
                    self._end(turn, running.pop(output.rid))
            if start_s:
                num_tokens += sum(len(output.token_ids) for output in outputs)
            elif all(request.token_ids for request in started):
                start_s = now_s
        for rid in running:
            engine.abort(rid, Finish("abort"))
        return Stretch(setting, turn, num_tokens, now_s - start_s, tuple(started))

    def _start(self, turn: Turn, setting: Setting, number: int, asked: Iterator[tuple[Case, int]]) -> Request:
        """In the loop's steady state, which is what is measured, each request finds all the others running."""
        case, limit = next(asked)
        case = replace(case, max_tokens=limit)
        decision = None
        if setting == POLICY:
            decision = self._deciders[turn.cell.is_hopeless].decide(case, turn.cell.size - 1)
        plan = plan_of(setting) if decision is None else decision.plan
        useless = _Useless(self._ours.engine.tokenizer.vocab_size - 1) if turn.cell.is_hopeless else None
        self._ours.start(f"bench-{number}", case, plan, seed=SEED + number, drafter=useless)
        return Request(case, plan, decision)

    def _end(self, turn: Turn, request: Request) -> None:
        if request.decision is not None:
            self._deciders[turn.cell.is_hopeless].learn(request.decision, request.feedback)

    def read(self, cases: Sequence[Case]) -> None:
        """Read all prompts once, so that none has to be read while the clock runs."""
        for i, case in enumerate(cases):
            self._ours.start(f"read-{i}", replace(case, max_tokens=1), PLAN_OFF, SEED)
            while self._ours.engine.has_work:
                self._ours.engine.step()


def measure_mix(ours: EngineArm, mix: Mix, clock: Clock, stretches: list[Stretch]) -> None:
    """Round after round until the time is over; the first cell is measured whole."""
    loop, first = ClosedLoop(ours), None
    clock.show("reading prompts")
    loop.read([case for cases in mix.cases.values() for case in cases])
    for turn in mix.turns():
        first = first or turn
        for setting in turn.settings:
            if clock.share >= 1.0 and turn is not first:
                return
            clock.show(f"round {turn.round + 1}, {turn.cell}: {setting}")
            stretches.append(loop.run(turn, setting))
