"""The one path of a request: admit, pick a lane, decide, hand over, report the outcome, free the place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from outrider.core import DRAFTERS, LaneAbility, LaneView, Outcome
from outrider.dispatch.admission import Admission
from outrider.dispatch.call import Call
from outrider.dispatch.learning import LearningStore, feedback_of
from outrider.dispatch.run import Run
from outrider.errors import APIError, LaneUnavailable
from outrider.policy.decide import Decision, Origin, PolicySet
from outrider.policy.features import extract_features
from outrider.runtimes.client import LaneClient
from outrider.runtimes.lane import Lane
from outrider.runtimes.pool import Pool
from outrider.telemetry.metrics import Metrics

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
        policies: PolicySet,
        metrics: Metrics,
        on_outcome: Callable[[Call, Outcome], None] | None = None,
    ) -> None:
        self._admission = admission
        self._pool = pool
        self._client = client
        self.policies = policies
        """Replaced as a whole when the files are read anew."""
        self.store: LearningStore | None = None
        """Where finished requests are recorded; None records none."""
        self._abilities: dict[str, LaneAbility] = {}
        self._metrics = metrics
        self._on_outcome = on_outcome
        self.num_open = 0
        """Requests that have arrived and not ended, the queued ones included."""
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_until_idle(self) -> None:
        """Return when no request is open."""
        await self._idle.wait()

    @asynccontextmanager
    async def run(self, call: Call) -> AsyncIterator[Run]:
        """Hold everything that `call` needs while the block relays; frees all of it on every exit.

        Raises ModelNotFound, QueueFull, QueueTimeout and LaneUnavailable before anything is sent to a lane.
        """
        # What no branch below replaces is a fault of ours.
        outcome = Outcome(status=500, error_code="internal_error")
        decision: Decision | None = None
        self.num_open += 1
        self._idle.clear()
        try:
            model = self._pool.card(call.model).id
            async with self._admission.slot():
                outcome.phases["admit"] = time.monotonic() - call.arrived_at_s
                lane = self._pool.resolve(model)
                decision = self._decide(call, lane, outcome)
                with lane.occupied():
                    yield self._start(call, lane, model, decision, outcome)
        except APIError as error:
            outcome.status, outcome.error_code = error.status, error.code
            raise
        except (asyncio.CancelledError, ConnectionResetError):
            outcome.status, outcome.error_code = CLIENT_LEFT, "client_left"
            raise
        finally:
            self.num_open -= 1
            if not self.num_open:
                self._idle.set()
            self._end(call, outcome, decision)

    def _decide(self, call: Call, lane: Lane, outcome: Outcome) -> Decision:
        now_s = time.monotonic()
        features = extract_features(call.body, call.hints)
        view = LaneView(self._ability(lane), lane.load())
        headers = {name.lower(): value for name, value in call.headers.items()}
        decision = self.policies.decide(features, call.hints, [view], now_s, Origin(call.model, headers))
        outcome.phases["plan"] = time.monotonic() - now_s
        plan = decision.plan
        self._metrics.decided(decision.workload, decision.rule, plan.drafter, plan.k)
        return decision

    def _ability(self, lane: Lane) -> LaneAbility:
        return self._abilities.setdefault(lane.name, LaneAbility.embedded(lane.name, DRAFTERS))

    def _start(self, call: Call, lane: Lane, model: str, decision: Decision, outcome: Outcome) -> Run:
        if lane.url is None:
            raise LaneUnavailable(f"lane {lane.name} is {lane.state.value}", retry_after_s=1.0)
        return Run(call, self._client, lane.name, lane.url, model, decision, outcome)

    def _end(self, call: Call, outcome: Outcome, decision: Decision | None) -> None:
        outcome.total_s = time.monotonic() - call.arrived_at_s
        if outcome.first_event_s is not None:
            outcome.phases["prefill"] = outcome.first_event_s - outcome.phases["admit"] - outcome.phases["plan"]
            outcome.phases["decode"] = outcome.total_s - outcome.first_event_s
        self._metrics.ended(outcome)
        feedback = feedback_of(outcome)
        if decision is not None and feedback is not None:
            self.policies.learn(decision, feedback)
            if self.store is not None:
                self.store.record(decision, outcome)
        logger.info(
            "request %s %s: %d %s in %.3f s",
            call.request_id, call.path, outcome.status, outcome.error_code or "ok", outcome.total_s,
        )  # fmt: skip
        if self._on_outcome is not None:
            self._on_outcome(call, outcome)
