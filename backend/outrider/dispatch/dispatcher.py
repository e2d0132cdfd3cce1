"""The one path of a request: admit, pick a lane, decide, hand over, report the outcome, free the place."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from outrider.core import Outcome
from outrider.dispatch.admission import Admission, Admissions
from outrider.dispatch.call import Call
from outrider.dispatch.learning import LearningStore, feedback_of
from outrider.dispatch.replays import Replays
from outrider.dispatch.route import Router
from outrider.dispatch.run import Run
from outrider.errors import APIError, LaneUnavailable
from outrider.policy.decide import PolicySet
from outrider.policy.decision import Decision
from outrider.policy.reload import PolicyFiles
from outrider.runtimes.client import LaneClient
from outrider.runtimes.dialects import dialect_of
from outrider.runtimes.lane import Lane
from outrider.runtimes.pool import Pool
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import Trace, Tracing

logger = logging.getLogger(__name__)

#: Status of a request whose client left; in logs and metrics only.
CLIENT_LEFT = 499


class Dispatcher:
    """Runs requests; each one gives exactly one Outcome to `on_outcome`, however it ends."""

    def __init__(
        self,
        admission: Admissions,
        pool: Pool,
        client: LaneClient,
        files: PolicyFiles,
        metrics: Metrics,
        on_outcome: Callable[[Call, Outcome], None] | None = None,
    ) -> None:
        self._admission = admission
        self._pool = pool
        self._client = client
        self.files = files
        pool.on_ready = self._meets
        for lane in pool.lanes:
            if lane.is_ready:
                self._meets(lane)
        self._router = Router(pool, lambda: self.policies, metrics)
        self._replays = Replays(lambda decision, written: self.policies.replay(decision, written))
        self.store: LearningStore | None = None
        """Where finished requests are recorded; None records none."""
        self.tracing: Tracing | None = None
        """Where requests are told of; None: nowhere."""
        self._metrics = metrics
        self._on_outcome = on_outcome
        self.num_open = 0
        """Requests that have arrived and not ended, the queued ones included."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def policies(self) -> PolicySet:
        """Those in force; another set when the files are read anew."""
        return self.files.current

    def _meets(self, lane: Lane) -> None:
        if self.policies.meets(lane.name, lane.runs):
            logger.warning("lane %s now runs %s: learning begins anew", lane.name, lane.runs)

    async def wait_until_idle(self) -> None:
        """Return when no request is open."""
        await self._idle.wait()

    def run(self, call: Call) -> AbstractAsyncContextManager[Run]:
        """Hold everything that `call` needs while the block relays; frees all of it on every exit.

        Raises ModelNotFound, RouteNotFound, RateLimited, QueueFull, QueueTimeout, DeadlineExceeded, LaneUnavailable
        before anything is sent to a lane.
        """
        return _Held(self, call)

    def _start(self, call: Call, model: str, outcome: Outcome) -> Run:
        """On a lane, where it takes a place that it must leave."""
        decision, lane = self._router.route(call, model, outcome)
        if lane.url is None:
            raise LaneUnavailable(f"lane {lane.name} is {lane.state.value}", retry_after_s=1.0)
        carries_plan = dialect_of(call.path).carries_plan
        run = Run(
            call, self._client, lane, lane.url, model, decision, outcome,
            reasons=[] if carries_plan else ["the route carries no plan, so the lane runs what it was set to"],
            counts_proposed=lane.abilities.counts_proposed, router=self._router,
            max_retries=self._admission.limits.max_retries, kept=self._replays.keep(call),
        )  # fmt: skip
        after_ms = self.policies.policy(decision.workload).hedge_after_ms
        run.hedge_after_s = None if after_ms is None else after_ms / 1000
        run.sent_s = time.monotonic()
        lane.enter(run.sent_s)
        return run

    def _end(self, call: Call, outcome: Outcome, run: Run | None) -> None:
        self.num_open -= 1
        if not self.num_open:
            self._idle.set()
        outcome.total_s = time.monotonic() - call.arrived_at_s
        if outcome.first_event_s is not None:
            outcome.phases["prefill"] = outcome.first_event_s - sum(outcome.phases.values())
            # What came whole, or for several choices side by side, does not tell how long a token takes.
            if call.is_stream and call.num_choices == 1 and outcome.num_events > 1:
                outcome.phases["decode"] = outcome.total_s - outcome.first_event_s
        # Behind the answer, which is written before the loop turns again.
        asyncio.get_running_loop().call_soon(self._take_in, None if run is None else run.decision, outcome)
        logger.info(
            "request %s %s: %d %s in %.3f s",
            call.request_id, call.path, outcome.status, outcome.error_code or "ok", outcome.total_s,
        )  # fmt: skip
        if self._on_outcome is not None:
            self._on_outcome(call, outcome)
        if run is not None:
            self._replays.end(call, outcome, run.decision, run.kept)

    def _take_in(self, decision: Decision | None, outcome: Outcome) -> None:
        """Count how it ended and learn from it."""
        self._metrics.ended(outcome)
        feedback = feedback_of(outcome)
        if decision is None or feedback is None:
            return
        self.policies.learn(decision, feedback)
        if self.store is not None:
            self.store.record(decision, outcome)


def _chosen(decision: Decision) -> dict[str, str | int]:
    plan = decision.plan
    return {"lane": decision.option.lane.name, "rule": decision.rule, "drafter": plan.drafter, "k": plan.k}


class _Held:
    """The context manager of `Dispatcher.run`; a class, since one made of a generator costs several times as much."""

    def __init__(self, dispatcher: Dispatcher, call: Call) -> None:
        self._dispatcher, self._call = dispatcher, call
        # What nothing below replaces is a fault of ours.
        self._outcome = Outcome(status=500, error_code="internal_error", tenant=call.claim.tenant)
        self._run: Run | None = None
        self._trace: Trace | None = None
        self._is_counted = False
        self._admission: Admission | None = None
        """Where it has a place."""

    async def __aenter__(self) -> Run:
        dispatcher, call = self._dispatcher, self._call
        if dispatcher.tracing is not None:
            self._trace = dispatcher.tracing.begin(call.path, call.headers, call.arrived_at_s)
            self._call = replace(call, headers=self._trace.headers)
        dispatcher.num_open += 1
        dispatcher._idle.clear()
        try:
            self._run = await self._begin(dispatcher, self._call)
            return self._run
        finally:
            if self._run is None:
                self._end(sys.exc_info()[1])

    async def _begin(self, dispatcher: Dispatcher, call: Call) -> Run:
        model = dispatcher._pool.card(call.model).id
        asked_s = time.monotonic()
        if call.key is not None:
            call.key.enter(asked_s)
            self._is_counted = True
        admission = dispatcher._admission.of(model)
        await admission.slot(call.claim).__aenter__()
        self._admission = admission
        now_s, outcome = time.monotonic(), self._outcome
        outcome.phases["admit"], outcome.queued_s = now_s - call.arrived_at_s, now_s - asked_s
        return dispatcher._start(call, model, outcome)

    async def __aexit__(self, _: object, error: BaseException | None, _trace: object) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        outcome, run = self._outcome, self._run
        if run is not None:
            run.lane.leave()
        if self._admission is not None:
            self._admission.leave()
        if self._is_counted:
            self._charge()
        if isinstance(error, APIError):
            outcome.status, outcome.error_code = error.status, error.code
        elif isinstance(error, (asyncio.CancelledError, ConnectionResetError)) and not (run and run.is_settled):
            outcome.status, outcome.error_code = CLIENT_LEFT, "client_left"
        self._dispatcher._end(self._call, outcome, run)
        if self._trace is not None:
            self._trace.end(outcome, {} if run is None else _chosen(run.decision))

    def _charge(self) -> None:
        """What it used, on its key; a request of which nothing was sent to a lane uses nothing up."""
        key, outcome, now_s = self._call.key, self._outcome, time.monotonic()
        if key is None:
            return
        if outcome.is_sent:
            # Without a usage count from the lane, the events of a stream are the best known.
            completed = outcome.num_completion_tokens
            key.leave(outcome.num_prompt_tokens + (outcome.num_events if completed is None else completed), now_s)
        else:
            key.give_back(now_s)
