"""Traffic on our engine in this process: always so many requests at once, each planned at the moment it starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING

from outrider.cli.bench.decider import Decider
from outrider.cli.bench.mix import Mix, Turn, limits, num_measured
from outrider.cli.bench.ours import SEED, EngineArm, plan_of
from outrider.cli.bench.samples import Case, Setting
from outrider.cli.bench.traffic import Request, Slice, Traffic, undisturbed
from outrider.cli.bench.visits import POLICY
from outrider.policy.lookup import Written
from outrider.policy.plan import PLAN_OFF

if TYPE_CHECKING:
    from outrider.cli.bench.measure import Clock
    from outrider.speculation.proposal import Proposal

#: Parts of the traffic, of which all settings run one before any runs the next.
NUM_SLICES = 8


class Useless:
    """A drafter whose every proposal is full and wrong: a token that the model hardly ever writes."""

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id

    def observe(self, token_id: int) -> None:
        """What was written changes nothing."""

    def propose(self, k: int) -> Proposal:
        """One token, `k` times."""
        from outrider.speculation.proposal import PointMass

        return PointMass((self._token_id,) * k)

    def free(self) -> None:
        """Holds nothing."""


class _Queue:
    """The requests of one setting in one turn: in a queue of their own, on a clock of their own."""

    def __init__(self, ours: EngineArm, decider: Decider, turn: Turn, setting: Setting, *, is_trimmed: bool) -> None:
        self._ours, self._decider, self._turn, self._setting = ours, decider, turn, setting
        max_tokens, size = max(case.max_tokens for case in turn.cases), turn.cell.size
        self._asked = zip(cycle(turn.cases), limits(size, max_tokens), strict=False)
        self._num_wanted = num_measured(size, max_tokens)
        self._scheduler = ours.scheduler(is_trimmed=is_trimmed)
        self._running: dict[str, Request] = {}
        self._started: list[Request] = []
        self._clock_s = 0.0
        self._num_tokens = 0
        self.slices: list[Slice] = []

    def fill(self) -> None:
        """Until each of the first requests has begun to write; this is not measured."""
        while not self._started or not all(request.token_ids for request in self._started):
            self._step()
        self._num_tokens = 0

    def advance(self, share: float) -> None:
        """A slice: until this share of the tokens has come."""
        before, began_s, began_cpu_s = self._num_tokens, self._clock_s, time.process_time()
        while self._num_tokens < share * self._num_wanted:
            self._step()
        cpu_s = time.process_time() - began_cpu_s
        self.slices.append(Slice(self._num_tokens - before, self._clock_s - began_s, cpu_s))

    def end(self, counted: Sequence[int]) -> Traffic:
        """With the slices that count. What is cut off teaches the policy nothing."""
        from outrider.engine.sequence import Finish

        self._ours.engine.scheduler = self._scheduler
        for rid in self._running:
            self._ours.engine.abort(rid, Finish("abort"))
        slices = [self.slices[i] for i in counted]
        num_tokens, seconds = sum(one.num_tokens for one in slices), sum(one.seconds for one in slices)
        num_left_out = len(self.slices) - len(slices)
        counts = num_tokens, seconds, tuple(self._started), num_left_out
        return Traffic(self._setting, self._turn, *counts, tuple(self.slices))

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
        case = replace(case, max_tokens=min(limit, case.max_tokens))
        decision = self._decider.decide(case, self._turn.cell.size - 1) if self._setting == POLICY else None
        plan = plan_of(self._setting) if decision is None else decision.plan
        useless = Useless(self._ours.engine.tokenizer.vocab_size - 1) if self._turn.cell.is_hopeless else None
        number = len(self._started)
        self._ours.start(f"bench-{number}", case, plan, seed=SEED + number, drafter=useless)
        self._running[f"bench-{number}"] = request = Request(case, plan, decision)
        self._started.append(request)

    def _end(self, request: Request) -> None:
        if request.decision is not None:
            written = Written(self._ours.encode(request.case), request.token_ids)
            self._decider.learn(request.decision, request.feedback, written)


class ClosedLoop:
    """One engine and two policies, which learn from what they decided: of the mix, and of useless drafters."""

    def __init__(self, ours: EngineArm, *, trims_fixed: bool = False) -> None:
        self._ours = ours
        self._trims_fixed = trims_fixed
        self._deciders = {False: ours.decider, True: Decider(ours)}

    def run(self, turn: Turn) -> list[Traffic]:
        """Every setting's traffic, a slice of each in turns, so that whatever else the machine does slows all alike.

        All are given the same requests in the same order, with the same noise, and so write the same text; a slice is
        as many tokens for each.
        """
        decider = self._deciders[turn.cell.is_hopeless]
        queues = [
            _Queue(self._ours, decider, turn, setting, is_trimmed=self._trims_fixed or setting == POLICY)
            for setting in turn.settings
        ]
        for one in queues:
            one.fill()
        for number in range(NUM_SLICES):
            for one in queues:
                one.advance((number + 1) / NUM_SLICES)
        counted = undisturbed([one.slices for one in queues])
        return [one.end(counted) for one in queues]

    def read(self, cases: Sequence[Case]) -> None:
        """Read all prompts once, so that none has to be read while the clock runs."""
        for i, case in enumerate(cases):
            self._ours.start(f"read-{i}", replace(case, max_tokens=1), PLAN_OFF, SEED)
            while self._ours.engine.has_work:
                self._ours.engine.step()


def measure_mix(ours: EngineArm, mix: Mix, clock: Clock, traffic: list[Traffic]) -> None:
    """Every size for its share of the time, round after round; the first cell of each in any case.

    One size after the other, since load that lasts is what is measured, and not how fast the policy follows a change.
    """
    loop = ClosedLoop(ours, trims_fixed=mix.trims_fixed)
    clock.show("reading prompts")
    loop.read([case for cases in mix.cases.values() for case in cases])
    start = clock.share
    for i, size in enumerate(mix.sizes):
        until = start + (1.0 - start) * (i + 1) / len(mix.sizes)
        for number, turn in enumerate(mix.turns(size)):
            if number and clock.share >= until:
                break
            clock.show(f"round {turn.round + 1}, {turn.cell}")
            traffic.extend(loop.run(turn))
