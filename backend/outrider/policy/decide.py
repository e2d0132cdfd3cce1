"""The decision: which workload a request belongs to, which plan it gets, and why. Pure; the caller gives the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from outrider.core import TASKS, Hints, LaneView
from outrider.errors import InvalidRequest
from outrider.policy.choose import Surveyor
from outrider.policy.decision import Decision, Tried, refusal_shown, refusals_shown
from outrider.policy.features import Features
from outrider.policy.kind import Kind
from outrider.policy.learning import Feedback, Learner
from outrider.policy.limits import Match, WorkloadPolicy
from outrider.policy.lookup import Written
from outrider.policy.options import UNSERVED, Option, Row
from outrider.policy.plan import Plan
from outrider.policy.settle import Settled, Settler, plain_of


@dataclass(slots=True)
class Origin:
    """Where a request comes from, as far as workloads match on it."""

    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Found by names in lower case."""


#: What is decided: features, hints, lanes, and the time. A plain tuple, since it is made for every request.
_Asked = tuple[Features, Hints, Sequence[LaneView], float]


class PolicySet:
    """The policies of one configuration, and what they have learnt."""

    def __init__(self, policies: Sequence[WorkloadPolicy], default: str, learner: Learner | None = None) -> None:
        """`default` names the workload for requests that none matches; KeyError when it is not among `policies`.

        Where several match, the one with most conditions is asked, and of equals the first.
        """
        self._by_name = {policy.workload: policy for policy in policies}
        self._default = self._by_name[default]
        self.learner = learner or Learner()
        self._surveyor = Surveyor(self.learner)
        self._settler = Settler(self.learner, self._surveyor)
        self._num_tried: dict[str, int] = {}
        matching = [(policy, policy.match) for policy in policies if policy.match is not None]
        matching.sort(key=lambda pair: -len(pair[1].model_fields_set))
        self._by_task = {
            task: tuple(pair for pair in matching if pair[1].tasks is None or task in pair[1].tasks) for task in TASKS
        }

    @property
    def workloads(self) -> tuple[str, ...]:
        """Names of the workloads, in file-name order."""
        return tuple(self._by_name)

    def policy(self, workload: str) -> WorkloadPolicy:
        """The policy of a workload; KeyError when there is none."""
        return self._by_name[workload]

    def decide(
        self,
        features: Features,
        hints: Hints,
        lanes: Sequence[LaneView],
        now_s: float,
        origin: Origin | None = None,
    ) -> Decision:
        """The plan and lane for one request; `now_s` is `time.monotonic()`.

        InvalidRequest when no lane can serve what the request asks for, or what it fixes and its workload refuses to
        replace.
        """
        policy = self._workload(features, origin)
        asked = (features, hints, lanes, now_s)
        trial = policy.trial
        if trial is None or _is_fixed(hints) or not self._is_tried(policy.workload, trial.share):
            return self._decide(policy, asked)
        other = self._by_name[trial.workload]
        names = trial.mode, policy.workload, other.workload
        if trial.mode == "shadow":
            decision = self._decide(policy, asked)
            return replace(decision, trial=Tried(*names, decision.option, *self._foreseen(other, asked)))
        try:
            decision = self._decide(other, asked)
        except InvalidRequest as error:
            decision = self._decide(policy, asked)
            return replace(decision, trial=Tried(*names, decision.option, None, error.message))
        live, refusal = self._foreseen(policy, asked)
        tried = Tried(*names, live, decision.option, refusal)
        return replace(decision, role=f"canary of workload {policy.workload}", trial=tried)

    def _is_tried(self, workload: str, share: float) -> bool:
        self._num_tried[workload] = number = self._num_tried.get(workload, 0) + 1
        return int(number * share) != int((number - 1) * share)

    def _foreseen(self, policy: WorkloadPolicy, asked: _Asked) -> tuple[Option | None, str]:
        """What a workload would run, or why it would refuse; asking leaves no trace."""
        try:
            return self._decide(policy, asked, is_run=False).option, ""
        except InvalidRequest as error:
            return None, error.message

    def meets(self, lane: str, runs: str) -> bool:
        """A lane is ready, with this model and build; True when these are new, so that learning begins anew."""
        if not self.learner.meets(lane, runs):
            return False
        self._surveyor = Surveyor(self.learner)
        self._settler = Settler(self.learner, self._surveyor)
        return True

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Take in how a decided request went."""
        self.learner.learn(decision, feedback)
        self._surveyor.follow(decision.kind)

    def replay(self, decision: Decision, written: Written) -> Iterator[None]:
        """Take in what look-ups would have shown of a finished answer, bit by bit as the iterator is advanced."""
        yield from self.learner.replay(decision, written)
        self._surveyor.follow(decision.kind)

    def _workload(self, features: Features, origin: Origin | None) -> WorkloadPolicy:
        for policy, match in self._by_task[features.task]:
            if _matches(match, features, origin):
                return policy
        return self._default

    def _decide(self, policy: WorkloadPolicy, asked: _Asked, *, is_run: bool = True) -> Decision:
        features, hints, lanes, now_s = asked
        if policy.task is not None and not features.is_task_given:
            features = replace(features, task=policy.task)
        is_off = hints.is_off
        drafter = None if is_off else hints.drafter
        kind = self._surveyor.kind(policy, features, drafter, hints.k or None)
        rows = self._surveyor.rows(kind, features, lanes, now_s)
        fit = rows
        if features.surfaces:
            fit = _fittest(rows)
            _refuse_inexact(policy, hints, features, fit)
        settled = _plain(fit) if is_off else self._settler.settle(kind, fit, is_run=is_run)
        # Lanes that must speculate, and with what the workload does not allow: as little as they can; even beyond a
        # drafter's context, which costs speed alone.
        for num_tokens in (features.num_prompt_tokens, 0) if settled is None and not is_off else ():
            short = replace(features, num_prompt_tokens=num_tokens)
            least = self._surveyor.kind(policy, short, None, 1)
            rows = self._surveyor.rows(least, short, lanes, now_s)
            settled = self._settler.settle(least, _fittest(rows), is_run=is_run)
            if settled is not None:
                settled = Settled(settled.option, "no-plain")
                break
        if settled is None or (settled.rule == "nearest" and policy.fallback == "refuse"):
            raise InvalidRequest(_unserved(kind, hints, rows), param="outrider")
        option, rule = settled
        limits = policy.limits_of(option.drafter)
        plan = _plan(option.drafter, option.k, limits is None or limits.learn)
        shut = _NONE if rule == "no-plain" else kind.shut
        unfit = () if fit is rows else [row for row in rows if row.num_missing > fit[0].num_missing]
        return Decision(
            plan, policy.workload, rule, features, option, kind, fit, unfit, lanes, self.learner.rounds, shut
        )


def _is_fixed(hints: Hints) -> bool:
    """The request's own word leaves workloads nothing to differ in."""
    return hints.is_off or hints.drafter is not None or hints.k is not None


@cache
def _plan(drafter: str, k: int, learn: bool) -> Plan:
    return Plan(drafter, k, learn)


def _fittest(rows: list[Row]) -> list[Row]:
    """The lanes that honour most of what the request asks for: the law comes before speed."""
    least, most = UNSERVED, 0
    for row in rows:
        missing = row.num_missing
        if missing < least:
            least = missing
        if missing > most:
            most = missing
    return rows if least == most else [row for row in rows if row.num_missing == least]


def _refuse_inexact(policy: WorkloadPolicy, hints: Hints, features: Features, fit: Sequence[Row]) -> None:
    first = fit[0]
    if first.unserved:
        name = features.surfaces[first.unserved[0]]
        raise InvalidRequest(f"{name}: no lane that is ready serves it; {refusal_shown(first.refusal)}", param=name)
    if (policy.exact or hints.exact) and first.inexact:
        name, who = features.surfaces[first.inexact[0]], "workload" if policy.exact else "request"
        raise InvalidRequest(f"{name}: the {who} is exact, and no lane that is ready honours it", param=name)


def _plain(rows: Sequence[Row]) -> Settled | None:
    """Where nothing can speculate, if there is such a lane: others may decode plainly by verifying no drafts."""
    best = plain_of([row for row in rows if not row.lane.drafters]) or plain_of(rows)
    return None if best is None else Settled(best, "request")


def _matches(match: Match, features: Features, origin: Origin | None) -> bool:
    """The task has been looked at already."""
    origin = origin or _NOWHERE
    return (
        (match.models is None or origin.model in match.models)
        and (match.tenants is None or features.tenant in match.tenants)
        and (match.headers is None or all(origin.headers.get(k.lower()) == v for k, v in match.headers.items()))
    )


_NOWHERE = Origin()
_NONE: frozenset[str] = frozenset()


def _unserved(kind: Kind, hints: Hints, rows: Sequence[Row]) -> str:
    what = "no lane can run without speculation"
    if not hints.is_off:
        what = f"no lane can run {kind.fixed}" if kind.fixed else f"{what}, and with it none that the request may use"
    return "; ".join([what, *refusals_shown([refusal for row in rows for refusal in row.shown(_NONE)[1]])])
