"""One admitted request on its lane: its decision, its report and how it ends."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from outrider.core import LaneLoad, Outcome, Report, SpecStats, WirePlan
from outrider.dispatch.call import Call
from outrider.errors import APIError
from outrider.policy.decide import Decision
from outrider.policy.plan import Plan
from outrider.runtimes.client import LaneAnswer, LaneClient, lane_call

#: Said in the report when the lane's counts cannot be believed.
CONTRADICTION = "the lane's statistics contradict themselves"


@dataclass(slots=True)
class Run:
    """Made by the dispatcher, used by the gateway while it relays."""

    call: Call
    client: LaneClient
    lane: str
    url: str
    model: str
    decision: Decision
    outcome: Outcome
    reasons: list[str] = field(default_factory=list)
    """What came to light after the decision."""

    @property
    def plan(self) -> Plan:
        """The effective plan; an embedded lane honours any plan, so it is the decided one."""
        return self.decision.plan

    def open(self) -> AbstractAsyncContextManager[LaneAnswer]:
        """Send the request to the lane; leaving the block early aborts it there."""
        call = self.call
        model = self.model if call.body.get("model") is None else None
        attempt = lane_call(call.path, call.raw, self.plan, model=model, is_stream=call.is_stream)
        return self.client.open(self.lane, self.url, replace(attempt, headers=call.headers))

    def saw_event(self) -> None:
        """Something arrived from the lane; the first time is remembered."""
        if self.outcome.first_event_s is None:
            self.outcome.first_event_s = time.monotonic() - self.call.arrived_at_s

    def saw_stats(self, stats: SpecStats | None, *, is_contradictory: bool = False) -> None:
        """The lane's statistics came, or came and cannot be believed."""
        self.outcome.stats = stats
        if is_contradictory:
            self.reasons.append(CONTRADICTION)
            self.client.metrics.statistics_refused()

    def succeed(self) -> None:
        """The answer was relayed to its end."""
        self.outcome.status, self.outcome.error_code = 200, None

    def fail(self, error: APIError) -> None:
        """The request ends with this error, whether or not the client could be told by a status."""
        self.outcome.status, self.outcome.error_code = error.status, error.code

    def report(self) -> Report:
        """The answer's `outrider` object, as far as it is known now."""
        call, decision = self.call, self.decision
        stats = self.outcome.stats
        return Report(
            requested=call.hints.model_dump(exclude_unset=True),
            effective=WirePlan(drafter=self.plan.drafter, k=self.plan.k),
            observed=None if stats is None else stats.observed(),
            lane=self.lane,
            workload=decision.workload,
            rule=decision.rule,
            task=decision.features.task,
            reasons=[*decision.reasons, *self.reasons],
            inputs=self._inputs() if call.hints.verbose else None,
        )

    def _inputs(self) -> dict[str, Any]:
        load = self.decision.load
        return {
            "features": asdict(self.decision.features),
            "load": None if load is None else _load_inputs(load),
            "candidates": self.decision.candidates(),
        }


def _load_inputs(load: LaneLoad) -> dict[str, Any]:
    fields = asdict(load)
    return fields | {"age_s": round(time.monotonic() - fields.pop("read_at_s"), 3)}
