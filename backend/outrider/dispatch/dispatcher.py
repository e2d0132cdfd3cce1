"""The one path of a request: admit, pick a lane, decide, hand over, report the outcome, free the place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from outrider.core import Outcome
from outrider.dispatch.admission import Admission
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
from outrider.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

#: Status of a request whose client left; in logs and metrics only.
CLIENT_LEFT = 499


class Dispatcher:
    """Runs requests; each one gives exactly one Outcome to `on_outcome`, however it ends."""

    def __init__(
        self,
        admission: Admission,
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

    @asynccontextmanager
    async def run(self, call: Call) -> AsyncIterator[Run]:
        """Hold everything that `call` needs while the block relays; frees all of it on every exit.

        Raises ModelNotFound, RouteNotFound, RateLimited, QueueFull, QueueTimeout, DeadlineExceeded, LaneUnavailable
        before anything is sent to a lane.
        """
        # What no branch below replaces is a fault of ours.
        outcome = Outcome(status=500, error_code="internal_error", tenant=call.claim.tenant)
        run: Run | None = None
        trace = None
        if self.tracing is not None:
            trace = self.tracing.begin(call.path, call.headers, call.arrived_at_s)
            call = replace(call, headers=trace.headers)
        self.num_open += 1
        self._idle.clear()
        try:
            model = self._pool.card(call.model).id
            with _Charged(call, outcome):
                asked_s = time.monotonic()
                async with self._admission.slot(call.claim):
                    now_s = time.monotonic()
                    outcome.phases["admit"], outcome.queued_s = now_s - call.arrived_at_s, now_s - asked_s
                    run = self._start(call, model, outcome)
                    try:
                        yield run
                    finally:
                        run.lane.leave()
        except APIError as error:
            outcome.status, outcome.error_code = error.status, error.code
            raise
        except (asyncio.CancelledError, ConnectionResetError):
            if run is None or not run.is_settled:
                outcome.status, outcome.error_code = CLIENT_LEFT, "client_left"
            raise
        finally:
            self.num_open -= 1
            if not self.num_open:
                self._idle.set()
            decision = None if run is None else run.decision
            self._end(call, outcome, decision)
            if run is not None:
                self._replays.end(call, outcome, run.decision, run.kept)
            if trace is not None:
                trace.end(outcome, {} if decision is None else _chosen(decision))

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

    def _end(self, call: Call, outcome: Outcome, decision: Decision | None) -> None:
        outcome.total_s = time.monotonic() - call.arrived_at_s
        if outcome.first_event_s is not None:
            outcome.phases["prefill"] = outcome.first_event_s - sum(outcome.phases.values())
            # What came whole, or for several choices side by side, does not tell how long a token takes.
            if call.is_stream and call.num_choices == 1 and outcome.num_events > 1:
                outcome.phases["decode"] = outcome.total_s - outcome.first_event_s
        # Behind the answer, which is written before the loop turns again.
        asyncio.get_running_loop().call_soon(self._take_in, decision, outcome)
        logger.info(
            "request %s %s: %d %s in %.3f s",
            call.request_id, call.path, outcome.status, outcome.error_code or "ok", outcome.total_s,
        )  # fmt: skip
        if self._on_outcome is not None:
            self._on_outcome(call, outcome)

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


class _Charged:
    """Counts the request on its key for the block, and charges what it used at the end. RateLimited.

    A request of which nothing was sent to a lane uses nothing up.
    """

    def __init__(self, call: Call, outcome: Outcome) -> None:
        self._key, self._outcome = call.key, outcome

    def __enter__(self) -> None:
        if self._key is not None:
            self._key.enter(time.monotonic())

    def __exit__(self, *_: object) -> None:
        key, outcome = self._key, self._outcome
        if key is None:
            return
        now_s = time.monotonic()
        if outcome.is_sent:
            # Without a usage count from the lane, the events of a stream are the best known.
            completed = outcome.num_completion_tokens
            key.leave(outcome.num_prompt_tokens + (outcome.num_events if completed is None else completed), now_s)
        else:
            key.give_back(now_s)
