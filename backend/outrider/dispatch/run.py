"""One admitted request on its lane: its decision, its report and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import Any, cast

from outrider.core import Outcome, SpecStats
from outrider.dispatch.call import Call
from outrider.dispatch.hedge import hedged
from outrider.dispatch.replays import Kept
from outrider.dispatch.route import Router
from outrider.errors import APIError, DeadlineExceeded, LaneFailed
from outrider.policy.decision import Decision
from outrider.policy.plan import Plan
from outrider.runtimes.client import LaneAnswer, LaneClient, lane_call
from outrider.runtimes.lane import Lane

#: Header by which clients set a deadline and lanes are told what is left of it, in milliseconds.
DEADLINE = "x-outrider-deadline-ms"
#: A pause between two events that a reader notices.
SLOW_GAP_S = 0.5
#: Said in the report when the lane's counts cannot be believed.
CONTRADICTION = "the lane's statistics contradict themselves"


@dataclass(slots=True)
class Run:
    """Made by the dispatcher, used by the gateway while it relays."""

    call: Call
    client: LaneClient
    lane: Lane
    url: str
    """Of the lane when the run began; a restart has another."""
    model: str
    decision: Decision
    outcome: Outcome
    reasons: list[str] = field(default_factory=list)
    """What came to light after the decision."""
    counts_proposed: bool = True
    """Whether the lane's count of proposed drafts can be believed."""
    is_settled: bool = False
    """How the request ends is known: what happens to the connection after that changes it no more."""
    failure: APIError | None = None
    """With which it ended, where it has failed and that was told in its stream."""
    router: Router | None = None
    """Finds another lane; None: there is none."""
    max_retries: int = 1
    tried: list[Lane] = field(default_factory=list)
    """Lanes of earlier attempts."""
    hedge_after_s: float | None = None
    """After so much silence another lane is asked too; None: never."""
    hedged: list[str] | None = None
    """The lanes that were asked side by side; None: there was one at a time."""
    sent_s: float = 0.0
    """`time.monotonic()` at which this attempt began."""
    kept: Kept | None = None
    """Where a stream's events are kept for what can be learnt of them at its end; None: nowhere."""
    _last_event_s: float = 0.0

    @property
    def plan(self) -> Plan:
        """The plan that the lane runs."""
        return self.decision.plan

    def open(self) -> AbstractAsyncContextManager[LaneAnswer]:
        """Send the request to the lane; leaving the block early aborts it there.

        DeadlineExceeded, LaneFailed.
        """
        self.outcome.is_sent = True
        # Whole answers come when they are finished: the faster one of two that are drawn would be the shorter one.
        is_fair = self.call.is_stream or self.decision.features.temperature <= 0
        if is_fair and self.hedge_after_s is not None and self.hedged is None:  # once: it is one attempt more
            return hedged(self, self.hedge_after_s)
        return _InTime(self, self.sent(self.lane, self.url, self.plan))

    def sent(self, lane: Lane, url: str, plan: Plan) -> AbstractAsyncContextManager[LaneAnswer]:
        """One attempt at a lane, with an id of its own."""
        call = self.call
        model = self.model if call.body.get("model") is None else None
        attempt = lane_call(
            call.path,
            call.lane_raw,
            plan,
            model=model,
            is_stream=call.is_stream,
            headers=self._headers(),
            keys=call.body,
        )
        return self.client.open(lane.name, url, attempt)

    def within_deadline(self, lane: Lane | None = None) -> AbstractContextManager[None]:
        """DeadlineExceeded when the deadline passes in the block, LaneFailed when its lane, or `lane`, fails."""
        return _Scope(lane or self.lane, self.left_s())

    def left_s(self) -> float | None:
        """Seconds to the deadline; None when there is none."""
        deadline_s = self.call.claim.deadline_s
        return None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)

    def _headers(self) -> Mapping[str, str]:
        left_s = self.left_s()
        return self.call.headers if left_s is None else {**self.call.headers, DEADLINE: str(int(1000 * left_s))}

    def saw_event(self, data: bytes = b"") -> None:
        """Something arrived from the lane; the first time is remembered, and long pauses are counted."""
        if self.kept is not None:
            self.kept.add(data)
        now_s, outcome = time.monotonic(), self.outcome
        if outcome.first_event_s is None:
            outcome.first_event_s = now_s - self.call.arrived_at_s
        elif now_s - self._last_event_s > SLOW_GAP_S:
            outcome.num_slow_gaps += 1
        outcome.num_events += 1
        self._last_event_s = now_s

    def saw_stats(self, stats: SpecStats | None, *, is_contradictory: bool = False) -> None:
        """The lane's statistics came, or came and cannot be believed."""
        if stats is not None and not self.counts_proposed:
            stats = replace(stats, num_proposed=None)
        self.outcome.stats = stats
        if is_contradictory:
            self.reasons.append(CONTRADICTION)
            self.client.metrics.statistics_refused()

    def succeed(self) -> None:
        """The answer was relayed to its end."""
        self.outcome.status, self.outcome.error_code = 200, None
        self.is_settled = True

    def fail(self, error: APIError) -> None:
        """The request ends with this error, whether or not the client could be told by a status."""
        self.outcome.status, self.outcome.error_code = error.status, error.code
        self.is_settled, self.failure = True, error

    def moves(self, decision: Decision, lane: Lane, url: str, reason: str, sent_s: float | None = None) -> None:
        """To another attempt, sent now or at `sent_s`, with nothing of the one before but its time."""
        outcome, now_s = self.outcome, time.monotonic() if sent_s is None else sent_s
        self.lane.leave()
        lane.enter(now_s)
        self.tried.append(self.lane)
        self.reasons = [one for one in self.reasons if one != CONTRADICTION] + [reason]
        self.decision, self.lane, self.url, self.sent_s = decision, lane, url, now_s
        self.counts_proposed = lane.abilities.counts_proposed
        spent_s = now_s - self.call.arrived_at_s
        outcome.phases["retry"] = spent_s - outcome.phases["admit"] - outcome.phases["plan"]
        outcome.first_event_s = outcome.num_completion_tokens = outcome.stats = None
        outcome.num_events = outcome.num_slow_gaps = 0
        if self.kept is not None:
            self.kept.clear()

    def report(self) -> dict[str, Any]:
        """The answer's `outrider` object, as far as it is known now; `core.Report` reads it."""
        hints, decision, stats = self.call.hints, self.decision, self.outcome.stats
        report = {
            "requested": hints.model_dump(exclude_unset=True) if hints.model_fields_set else {},
            "effective": decision.plan.to_wire(),
            "observed": None if stats is None else _observed(stats),
            "lane": self.lane.name,
            "workload": decision.workload,
            "rule": decision.rule,
            "task": decision.features.task,
            "reasons": [*decision.reasons, *self.reasons],
        }
        if self.hedged is not None:
            report["hedged"] = self.hedged
        if hints.verbose:
            report["inputs"] = self._inputs()
        return report

    def _inputs(self) -> dict[str, Any]:
        load = self.decision.load
        return {
            "features": asdict(self.decision.features),
            "load": None if load is None else load.to_wire(),
            "gpus": self.lane.gpus_to_wire(),
            "candidates": self.decision.candidates(),
        }


def _observed(stats: SpecStats) -> dict[str, object]:
    """As `core.Observed` reads it."""
    return {
        "num_verify_steps": stats.num_verify_steps,
        "num_proposed": stats.num_proposed,
        "num_accepted": stats.num_accepted,
        "accept_length": round(stats.accept_length, 4),
        "accepted_histogram": stats.histogram,
    }


class _InTime:
    """Opened within the deadline. A class, since one made of a generator costs several times as much."""

    def __init__(self, run: Run, opened: AbstractAsyncContextManager[LaneAnswer]) -> None:
        self._run, self._opened = run, opened

    async def __aenter__(self) -> LaneAnswer:
        with self._run.within_deadline():
            return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)


class _Scope:
    """Ends with a deadline or a lane, by the rules of `asyncio.timeout`; without a deadline there is no timer."""

    def __init__(self, lane: Lane, left_s: float | None) -> None:
        self._lane = lane
        self._left_s = left_s
        self._timer: asyncio.TimerHandle | None = None
        self._end: APIError | None = None
        """Why the task was cancelled from here."""

    def __enter__(self) -> None:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._num_cancels = self._task.cancelling()
        self._lane.on_failure.add(self._fail)
        if self._left_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._left_s, self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lane.on_failure.discard(self._fail)
        if self._timer is not None:
            self._timer.cancel()
        if self._end is None:
            return
        if self._task.uncancel() <= self._num_cancels and kind is asyncio.CancelledError:
            raise self._end from error

    def _fail(self) -> None:
        self._stop(LaneFailed(f"lane {self._lane.name} failed"))

    def _expire(self) -> None:
        self._stop(DeadlineExceeded("the request's deadline passed"))

    def _stop(self, end: APIError) -> None:
        if self._end is None:
            self._end = end
            self._task.cancel()
