"""Traffic on our engine in this process: always so many requests at once, each planned at the moment it starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
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

#: Parts of a stretch, of which all settings run one before any runs the next.
NUM_SLICES = 8


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


class _Traffic:
    """The requests of one setting in one turn: in a queue of their own, on a clock of their own."""

    def __init__(self, ours: EngineArm, decider: Decider, turn: Turn, setting: Setting) -> None:
        self._ours, self._decider, self._turn, self._setting = ours, decider, turn, setting
        max_tokens, size = turn.cases[0].max_tokens, turn.cell.size
        self._asked = zip(cycle(turn.cases), limits(size, max_tokens), strict=False)
        self._num_wanted = num_measured(size, max_tokens)
        self._scheduler = ours.scheduler()
        self._running: dict[str, Request] = {}
        self._started: list[Request] = []
        self._clock_s = 0.0
        self._start_s = 0.0
        self._num_tokens = 0

    def fill(self) -> None:
        """Until each of the first requests has begun to write; this is not measured."""
        while not self._started or not all(request.token_ids for request in self._started):
            self._step()
        self._start_s, self._num_tokens = self._clock_s, 0

    def advance(self, share: float) -> None:
        """Until this share of the tokens has come."""
        while self._num_tokens < share * self._num_wanted:
            self._step()

    def end(self) -> Stretch:
        """What is cut off teaches the policy nothing."""
        from outrider.engine.sequence import Finish

        self._ours.engine.scheduler = self._scheduler
        for rid in self._running:
            self._ours.engine.abort(rid, Finish("abort"))
        seconds = self._clock_s - self._start_s
        return Stretch(self._setting, self._turn, self._num_tokens, seconds, tuple(self._started))

    def _step(self) -> None:
        """A step of the engine with as many requests as the cell has, and what it brought."""
        began_s = time.perf_counter()
        self._ours.engine.scheduler = self._scheduler
        while len(self._running) < self._turn.cell.size:
            self._start()
        outputs = self._ours.engine.step()
        self._clock_s += time.perf_counter() - began_s
        for output in outputs:
            self._num_tokens += len(output.token_ids)
            self._running[output.rid].take(output, self._clock_s)
            if output.finish is not None:
                self._end(self._running.pop(output.rid))

    def _start(self) -> None:
        """In the loop's steady state, which is what is measured, each request finds all the others running."""
        case, limit = next(self._asked)
        case = replace(case, max_tokens=limit)
        decision = self._decider.decide(case, self._turn.cell.size - 1) if self._setting == POLICY else None
        plan = plan_of(self._setting) if decision is None else decision.plan
        useless = _Useless(self._ours.engine.tokenizer.vocab_size - 1) if self._turn.cell.is_hopeless else None
        number = len(self._started)
        self._ours.start(f"bench-{number}", case, plan, seed=SEED + number, drafter=useless)
        self._running[f"bench-{number}"] = request = Request(case, plan, decision)
        self._started.append(request)

    def _end(self, request: Request) -> None:
        if request.decision is not None:
            self._decider.learn(request.decision, request.feedback)


class ClosedLoop:
    """One engine and two policies, which learn from what they decided: of the mix, and of useless drafters."""

    def __init__(self, ours: EngineArm) -> None:
        self._ours = ours
        self._deciders = {False: ours.decider, True: Decider(ours)}

    def run(self, turn: Turn) -> list[Stretch]:
        """Every setting's traffic, a slice of each in turns, so that whatever else the machine does slows all alike.

        All are given the same requests in the same order, with the same noise, and so write the same text; a slice is
        as many tokens for each.
        """
        traffic = [_Traffic(self._ours, self._deciders[turn.cell.is_hopeless], turn, s) for s in turn.settings]
        for one in traffic:
            one.fill()
        for number in range(NUM_SLICES):
            for one in traffic:
                one.advance((number + 1) / NUM_SLICES)
        return [one.end() for one in traffic]

    def read(self, cases: Sequence[Case]) -> None:
        """Read all prompts once, so that none has to be read while the clock runs."""
        for i, case in enumerate(cases):
            self._ours.start(f"read-{i}", replace(case, max_tokens=1), PLAN_OFF, SEED)
            while self._ours.engine.has_work:
                self._ours.engine.step()


def measure_mix(ours: EngineArm, mix: Mix, clock: Clock, stretches: list[Stretch]) -> None:
    """Round after round until the time is over; the first cell is measured in any case."""
    loop = ClosedLoop(ours)
    clock.show("reading prompts")
    loop.read([case for cases in mix.cases.values() for case in cases])
    for turn in mix.turns():
        if clock.share >= 1.0 and stretches:
            return
        clock.show(f"round {turn.round + 1}, {turn.cell}")
        stretches.extend(loop.run(turn))
