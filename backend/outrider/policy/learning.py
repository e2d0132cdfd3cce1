"""What decisions learn from: acceptance, round times, whether a drafter pays, and what learning itself has cost.

Plain data in and out; who stores it lies outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from random import Random
from typing import Any, Protocol

from outrider.core import SpecStats
from outrider.policy.acceptance import Acceptance
from outrider.policy.lookup import Replay, Written
from outrider.policy.plan import Plan
from outrider.policy.priors import LOOK_UPS, Cell
from outrider.policy.rounds import Rounds

#: Layout of the state.
VERSION = 5
#: Speculation may make a workload at most this much slower than plain decoding, tries included.
MAX_SLOWDOWN = 0.05
#: Of that, what tries may use up.
_TRY_SLOWDOWN = 0.03
#: Draft tokens with which look-ups are replayed.
_REPLAY_K = 8
#: Rounds that a request must have had for its mean round to say something.
_MIN_ROUNDS = 8
#: Decisions until a drafter that did not pay is tried again: at first, and at most.
_FIRST_BACKOFF, _LAST_BACKOFF = 16, 4096
#: Measurements that a drafter must have when its workload is overdrawn.
_PROVEN = 3
#: Lanes that are remembered; who was not met for longest goes first.
_MAX_LANES = 1024
#: What one more request makes of the ledger's sums.
_KEEP = 0.995


@dataclass(slots=True)
class Feedback:
    """What one finished request showed."""

    stats: SpecStats | None
    """None when nothing was verified or the lane cannot say: which is not zero acceptance."""
    num_tokens: int | None = None
    """Tokens of the answer."""
    decode_s: float | None = None
    """Seconds from the first token to the last."""


class Decided(Protocol):
    """What learning needs of a decision."""

    @property
    def plan(self) -> Plan:
        """What was to run."""

    @property
    def lane(self) -> str:
        """Name of the lane."""

    @property
    def workload(self) -> str:
        """Name of the policy."""

    @property
    def cell(self) -> Cell:
        """Whose acceptance is learnt from it."""

    @property
    def batch(self) -> int:
        """Requests that the lane had, this one included."""

    @property
    def is_own(self) -> bool:
        """Whether the policy chose the plan itself, so that it may learn from what came of it."""

    def plain_round_s(self) -> float:
        """What a plain round was expected to take, in seconds."""

    def round_s(self, fill: float) -> float:
        """What a round was expected to take, in seconds, with the share `fill` of k proposed."""


@dataclass(slots=True)
class Gate:
    """Whether a drafter pays for a task at a temperature: its utility is measured tokens/s over plain tokens/s."""

    utility: float = 1.0
    num: int = 0
    backoff: int = _FIRST_BACKOFF
    due: int = 0
    """Number of the workload's decision from which on it may be tried."""

    @property
    def is_closed(self) -> bool:
        """It was measured and does not pay, beyond what chance explains after so few."""
        return self.num > 0 and self.utility + 0.3 / self.num**0.5 < 1.0

    @property
    def is_proven(self) -> bool:
        """It was measured often enough and pays."""
        return self.num >= _PROVEN and self.utility >= 1.0

    def tried(self, number: int) -> None:
        """A try begins: the next waits twice as long, unless this one pays."""
        self.due = number + self.backoff
        self.backoff = min(2 * self.backoff, _LAST_BACKOFF)

    def measured(self, utility: float) -> None:
        """Learn from one answer's utility; what pays again starts afresh."""
        if utility >= 1.0 and self.is_closed:
            self.num = 0
        if utility >= 1.0:
            self.backoff = _FIRST_BACKOFF
        self.num += 1
        self.utility += (utility - self.utility) / min(self.num, 12)


@dataclass(slots=True)
class Ledger:
    """One workload's decisions, and what its speculation has cost against plain decoding."""

    num_decided: int = 0
    control_due: float = 0.0
    """What requests that speculation was expected to gain for have earned of a plain one; at 1 it is due."""
    next_try: int = 0
    """The decision from which the next try is counted."""
    plain_s: float = 0.0
    """What the answers took or would have taken plain, in seconds; recent ones count more."""
    extra_s: float = 0.0
    """What they took beyond that; negative when speculation pays."""

    def spent(self, plain_s: float, taken_s: float) -> None:
        """Add an answer: what it would have taken plain, and what it took."""
        self.plain_s = _KEEP * self.plain_s + plain_s
        self.extra_s = _KEEP * self.extra_s + taken_s - plain_s

    @property
    def may_try(self) -> bool:
        """Whether tries are affordable."""
        return self.extra_s <= _TRY_SLOWDOWN * self.plain_s

    @property
    def is_overdrawn(self) -> bool:
        """Whether speculation has cost more than is allowed."""
        return self.plain_s > 0 and self.extra_s > MAX_SLOWDOWN * self.plain_s


@dataclass(slots=True)
class Learner:
    """Everything that outcomes change. One for all policies of a gateway, and it outlives their reload."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    rounds: Rounds = field(default_factory=Rounds)
    gates: dict[tuple[str, str, str, int, int], Gate] = field(default_factory=dict)
    """By workload, drafter, task, temperature, and the k of tries of a larger one, 0 for the drafter as a whole."""
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    lanes: dict[str, str] = field(default_factory=dict)
    """The model and build that each lane had."""
    random: Random = field(default_factory=lambda: Random(0))
    num_changes: int = field(init=False)
    """Grows with every gate that is closed or opened, or proves to pay or no longer to; above 0 once one may be."""

    def __post_init__(self) -> None:
        self.num_changes = len(self.gates)

    def gate(self, workload: str, drafter: str, cell: Cell, k: int = 0) -> Gate:
        """`cell` gives task and temperature."""
        key = (workload, drafter, cell.task, cell.temperature, k)
        found = self.gates.get(key)
        if found is None:
            found = self.gates[key] = Gate()
        return found

    def ledger(self, workload: str) -> Ledger:
        """Of the workload; made when it is first asked for."""
        found = self.ledgers.get(workload)
        if found is None:
            found = self.ledgers[workload] = Ledger()
        return found

    def meets(self, lane: str, runs: str) -> bool:
        """A lane is ready, with this model and build. True when it had others, which no lane has had, so that all is
        forgotten; where another lane has them, only what was learnt of this one's speed is."""
        before, is_known = self.lanes.pop(lane, runs), runs in self.lanes.values()
        self.lanes[lane] = runs
        if len(self.lanes) > _MAX_LANES:
            eldest = next(iter(self.lanes))
            del self.lanes[eldest]
            self.rounds.forget(eldest)
        if before != runs and is_known:
            self.rounds.forget(lane)
        if before == runs or is_known:
            return False
        self.acceptance, self.rounds, self.gates, self.ledgers = Acceptance(), Rounds(), {}, {}
        self.num_changes += 1
        return True

    def learn(self, decided: Decided, feedback: Feedback) -> None:
        """Take in how one request went. What it fixed by itself does not tell whether the workload's choices pay."""
        plan, stats, cell = decided.plan, feedback.stats, decided.cell
        if not plan.is_off and stats is not None:
            self.acceptance.update(cell, stats, plan.k)
        num_tokens, decode_s = feedback.num_tokens, feedback.decode_s
        if num_tokens is None or not decode_s or num_tokens < 2:
            return
        if plan.is_off:
            num_rounds, round_s = num_tokens - 1, decided.plain_round_s()
        elif stats is not None:
            num_rounds = stats.num_verify_steps
            fill = 1.0 if stats.num_proposed is None else min(1.0, stats.num_proposed / (num_rounds * plan.k))
            round_s = decided.round_s(fill)
        else:
            return
        lane, batch = decided.lane, decided.batch
        if num_rounds >= _MIN_ROUNDS:
            self.rounds.observe(lane, plan.drafter, (round_s, decode_s / num_rounds), batch)
        if not decided.is_own:
            return
        # A request that was stalled counts by what rounds are believed to take now, which one request moves little.
        taken_s = num_rounds * round_s * self.rounds.correction(lane, plan.drafter, batch)
        if plan.is_off:
            self.ledger(decided.workload).spent(taken_s, taken_s)
        else:
            plain_s = (num_tokens - 1) * decided.plain_round_s() * self.rounds.correction(lane, batch=batch)
            self.ledger(decided.workload).spent(plain_s, taken_s)
            gate = self.gate(decided.workload, plan.drafter, cell)
            before = gate.is_closed, gate.is_proven
            gate.measured(plain_s / taken_s)
            self.num_changes += before != (gate.is_closed, gate.is_proven)

    def replay(self, decided: Decided, written: Written) -> Iterator[None]:
        """Take in what look-ups that did not run would have shown of a finished text, which costs nobody a try; stops
        often, so that others may work in between. The text is not kept."""
        for drafter in LOOK_UPS - {decided.plan.drafter}:
            replay = Replay(drafter, _REPLAY_K)
            yield from replay.rounds(written)
            if replay.stats is not None:
                cell = decided.cell._replace(drafter=drafter, is_sampled=False)
                self.acceptance.replay(cell, replay.stats, _REPLAY_K)

    def to_state(self, key: dict[str, str]) -> dict[str, Any]:
        """Plain data for JSON. `key` says what it was learnt on: model and build."""
        return {
            "version": VERSION,
            "key": key,
            "acceptance": self.acceptance.to_state(),
            "rounds": self.rounds.to_state(),
            "gates": [[*name, *astuple(gate)] for name, gate in self.gates.items()],
            "ledgers": {name: list(astuple(ledger)) for name, ledger in self.ledgers.items()},
            "lanes": self.lanes,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any] | None, key: dict[str, str]) -> Learner:
        """What was stored; a fresh one when nothing was, or when it was learnt on another model or build."""
        if state is None or state.get("version") != VERSION or state.get("key") != key:
            return cls()
        return cls(
            Acceptance.from_state(state["acceptance"]),
            Rounds.from_state(state["rounds"]),
            {
                (workload, drafter, task, bucket, k): Gate(*values)
                for workload, drafter, task, bucket, k, *values in state["gates"]
            },
            {name: Ledger(*values) for name, values in state["ledgers"].items()},
            dict(state["lanes"]),
        )
