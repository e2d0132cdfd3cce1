"""The shipped policies as the gateway asks them, before an engine in this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from outrider.cli.bench.samples import Case
from outrider.config import packaged_data
from outrider.core import Hints, LaneLoad, LaneView
from outrider.policy.decision import Decision
from outrider.policy.features import extract_features
from outrider.policy.learning import Feedback
from outrider.policy.loader import Source, load_policies
from outrider.policy.lookup import Written
from outrider.runtimes.abilities import lane_ability, read_abilities

if TYPE_CHECKING:
    from outrider.cli.bench.ours import EngineArm


class Decider:
    """Policies that know nothing yet, and one lane: the engine, with its own cost table if it has one."""

    def __init__(self, ours: EngineArm) -> None:
        from outrider.engine.info import ServerOptions, server_info

        # As a gateway reads it from the engine's server.
        info = server_info(ours.engine, ServerOptions(ours.folder, "bench", limits=ours.limits))
        self._ability = lane_ability("bench", read_abilities(info))
        self._policies = load_policies(Source([packaged_data("policies")]))

    def decide(self, case: Case, num_others: int = 0) -> Decision:
        """What the gateway would decide for this case beside so many running requests, from its body alone."""
        body = {"messages": case.messages, "temperature": case.temperature, "max_tokens": case.max_tokens}
        now_s = time.monotonic()
        load = LaneLoad(num_others, 0, self._ability.max_running, now_s)
        return self._policies.decide(extract_features(body, Hints()), Hints(), [LaneView(self._ability, load)], now_s)

    def learn(self, decision: Decision, feedback: Feedback, written: Written | None = None) -> None:
        """Take in how a decided request went, and what look-ups would have shown of its text."""
        self._policies.learn(decision, feedback)
        if written is not None:
            for _ in self._policies.replay(decision, written):
                pass
