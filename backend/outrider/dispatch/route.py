"""Where a request goes: lanes that may take it, the policy's decision, and the cache that speaks for one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter

from outrider.core import LaneAbility, LaneView, Outcome
from outrider.dispatch.affinity import Affinity, prefix_keys, session_key
from outrider.dispatch.call import Call
from outrider.errors import LaneUnavailable
from outrider.policy.decide import Origin, PolicySet
from outrider.policy.decision import Decision
from outrider.policy.features import extract_features
from outrider.policy.options import Option
from outrider.runtimes.dialects import dialect_of
from outrider.runtimes.lane import Lane
from outrider.runtimes.pool import Pool
from outrider.telemetry.metrics import Metrics

_NUM_IN_FLIGHT = attrgetter("num_in_flight")
#: A conversation stays where its beginning is cached while that lane is expected to be at least so fast, as a share
#: of the lane decided for, and to have at most so many requests: a prompt that need not be read again is worth that.
_LEAST_SHARE = 0.9
_MORE_REQUESTS, _TIMES_REQUESTS = 4, 1.5
#: Rules that name the lane for its speed, which is then not why it is taken.
_FOR_SPEED = frozenset({"best-rate", "held", "plain", "no-drafter"})


class Router:
    """Decides lane and plan of requests; remembers which lane served which conversation."""

    def __init__(self, pool: Pool, policies: Callable[[], PolicySet], metrics: Metrics) -> None:
        """`policies` gives those that are in force."""
        self._pool = pool
        self._policies = policies
        self._metrics = metrics
        self._affinity = Affinity()

    def route(
        self, call: Call, model: str, outcome: Outcome, fits: Callable[[Lane], bool] | None = None
    ) -> tuple[Decision, Lane]:
        """Decide over those of the model's group that `fits` accepts.

        ModelNotFound, RouteNotFound, LaneUnavailable; InvalidRequest where no lane can do what is asked.
        """
        began_s = time.monotonic()
        lanes = self._candidates(call, model, fits, began_s)
        tenant = None if call.key is None else call.claim.tenant
        features = extract_features(call.body, call.hints, tenant, call.claim.priority)
        carries_plan = dialect_of(call.path).carries_plan
        abilities = [lane.ability if carries_plan else lane.unplanned_ability for lane in lanes]
        views = [LaneView(ability, lane.load()) for ability, lane in zip(abilities, lanes, strict=True)]
        origin = Origin(call.model, call.client_headers)
        decision = self._policies().decide(features, call.hints, views, began_s, origin)
        if len(self._pool.lanes) > 1:
            decision = self._at_home(call, decision, lanes, views)
        outcome.phases["plan"] = outcome.phases.get("plan", 0.0) + time.monotonic() - began_s
        outcome.workload, outcome.num_prompt_tokens = decision.workload, features.num_prompt_tokens
        plan = decision.plan
        self._metrics.decided(decision.workload, decision.rule, plan.drafter, plan.k)
        if (tried := decision.trial) is not None:
            self._metrics.tried((tried.workload, tried.other, tried.mode), tried.result, tried.rates)
        return decision, lanes[[ability is decision.option.lane for ability in abilities].index(True)]

    def served(self, call: Call, decision: Decision) -> None:
        """The conversation went on at this decision's lane, whatever was decided for it besides."""
        owner = decision.features.tenant
        self._affinity.served(prefix_keys(call.body, owner), decision.lane, session_key(call.client_headers, owner))

    def _candidates(self, call: Call, model: str, fits: Callable[[Lane], bool] | None, now_s: float) -> list[Lane]:
        """Those whose breakers let it pass, or all where none does; the emptiest, which of equals is taken, first."""
        group = self._pool.ready(model, call.path)
        if len(group) == 1 and fits is None:
            return group
        able = group if fits is None else [lane for lane in group if fits(lane)]
        if not able:
            raise LaneUnavailable("no other lane is ready to take the request", retry_after_s=1.0)
        passing = [lane for lane in able if lane.breaker.lets_pass(now_s)]
        return sorted(passing or able, key=_NUM_IN_FLIGHT)

    def _at_home(self, call: Call, decision: Decision, lanes: list[Lane], views: list[LaneView]) -> Decision:
        """The decision, or the same plan on the lane that served the conversation's last turn, where that is near."""
        owner = decision.features.tenant
        keys, session = prefix_keys(call.body, owner), session_key(call.client_headers, owner)
        name = self._affinity.home(keys[:-1], session) if len(lanes) > 1 else None
        if name is not None and name != decision.lane:
            pairs = {pair[0].name: pair for pair in zip(lanes, views, strict=True)}
            if name in pairs:
                decision = _moved(decision, pairs[name], pairs[decision.lane])
        self._affinity.served(keys, decision.lane, session)
        return decision


def _moved(decision: Decision, home: tuple[Lane, LaneView], best: tuple[Lane, LaneView]) -> Decision:
    """The same plan on the lane `home`, unless that cannot run it, or is much slower or fuller than `best`."""
    num_requests = _num_requests(*best)
    limit = max(num_requests * _TIMES_REQUESTS, num_requests + _MORE_REQUESTS)
    option = _same_plan(decision, home[1].ability)
    is_near = option is not None and option.rate >= decision.option.rate * _LEAST_SHARE
    if option is None or not is_near or _num_requests(*home) > limit:
        return decision
    return replace(decision, option=option, rule="home" if decision.rule in _FOR_SPEED else decision.rule)


def _num_requests(lane: Lane, view: LaneView) -> int:
    """On the lane; of one whose load is not known those of ours."""
    return lane.num_in_flight if view.load is None else view.load.num_requests


def _same_plan(decision: Decision, ability: LaneAbility) -> Option | None:
    """On another lane that honours as much of the request; None where it cannot run there."""
    row = next((one for one in decision.rows if one.lane is ability), None)
    if row is None:
        return None
    if decision.plan.is_off:
        return row.plain if row.plain_rate else None
    entry = row.prices.entry(decision.plan.drafter, decision.plan.k)
    return None if entry is None else row.option(entry, decision.plan.k)
