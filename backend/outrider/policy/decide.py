"""The decision: which workload a request belongs to, which plan it gets, and why. Pure; the caller gives the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.core import TASKS, Hints, LaneLoad, LaneView
from outrider.errors import InvalidRequest
from outrider.policy.acceptance import Cell
from outrider.policy.choose import Kind, Surveyor
from outrider.policy.eligibility import REASONS
from outrider.policy.features import Features
from outrider.policy.learning import Feedback, Learner
from outrider.policy.limits import Match, WorkloadPolicy
from outrider.policy.options import Option, Refusal, Row
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.policy.rounds import Rounds
from outrider.policy.settle import Settled, Settler, plain_of

#: Codes of what decided, and the sentence that answers show.
RULES = {
    "request": "the request fixed it",
    "best-rate": "it is expected to be fastest",
    "plain": "no drafter is expected to gain over plain decoding",
    "objective": "it is the least that reaches the workload's objective",
    "control": "plain for comparison, as a small share of requests is",
    "explore": "tried to learn, as a small share of requests is",
    "no-plain": "no lane decodes plainly, and it is expected to be fastest",
    "unserved": "no lane can run what the request fixed, so plain",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request comes from, as far as workloads match on it."""

    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How one request is to be speculated, where, and why."""

    plan: Plan
    workload: str
    """Name of the policy file that was asked."""
    rule: str
    """A code of `RULES`."""
    features: Features
    option: Option
    """What was taken: lane, plan, expected tokens per second, and how full the lane is."""
    kind: Kind
    rows: Sequence[Row]
    """All that was possible, and what was refused, by lane."""
    load: LaneLoad | None
    """The lane's load as it was given, also when it was too old to be used."""
    rounds: Rounds
    role: str = ""
    """Beside which workload this was decided; empty when by itself."""
    trial: str | None = None
    """What the workload's trial would have run, or was replaced by."""

    @property
    def lane(self) -> str:
        return self.option.lane.name

    @property
    def cell(self) -> Cell:
        """Where its acceptance is learnt."""
        return self.kind.cell._replace(drafter=self.plan.drafter, is_sampled=self.option.is_sampled)

    def plain_round_s(self) -> float:
        """Seconds of a plain round where this was decided, before correction."""
        return self.rounds.forwards(self.option.lane, self.option.seen.batch, self.kind.context)[0]

    def round_s(self, fill: float) -> float:
        """Seconds of a round of the plan when a share `fill` of its drafts is proposed, before correction."""
        scene = (self.option.seen.batch, self.kind.context)
        return self.rounds.round_s(self.option.lane, self.plan.drafter, scene, fill)[self.plan.k]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Readable sentences: workload, load, the plan, what else was possible, what was not."""
        if self.rule == "request" and self.plan.is_off:
            return ("the request turned speculation off",)
        return (self._why(), self._load_reason(), *self._plan_reasons(), *_refusals(self.refused))

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """Lanes and drafters that were left out."""
        return tuple(refusal for row in self.rows for refusal in row.refused)

    @property
    def possible(self) -> tuple[Option, ...]:
        """All plans that were compared."""
        plains = (row.plain for row in self.rows if row.plain_rate)
        return (*plains, *(row.option(entry) for row in self.rows for entry in row.usable()))

    def _why(self) -> str:
        source = "given by the request" if self.features.is_task_given else "guessed"
        task = f"task {self.features.task} ({source})"
        if self.role:
            return f"{task}; {self.role}"
        if self.kind.policy.match is None:
            return f"no workload is for {task}, so {self.workload} by default"
        return f"{task} belongs to workload {self.workload}"

    def _load_reason(self) -> str:
        seen = self.option.seen
        if not seen.is_known:
            return f"the load of lane {self.lane} is unknown or stale, so it counts as full"
        noun = "request" if seen.num_others == 1 else "requests"
        waiting = f", {seen.num_waiting} of them waiting" if seen.num_waiting else ""
        return f"{seen.num_others} other {noun} on lane {self.lane}{waiting}"

    def _plan_reasons(self) -> Iterator[str]:
        yield f"{self.option.shown}: {RULES[self.rule]}"
        taken = (self.lane, *self.option[3:5])
        others = [o for o in self.possible if (o.lane.name, *o[3:5]) != taken]
        for other in sorted(others, key=lambda option: -option.rate)[:_MAX_SHOWN]:
            yield f"possible: {other.shown}"
        if self.trial is not None:
            yield self.trial

    def candidates(self) -> list[dict[str, Any]]:
        """Every plan that was possible, with its expected tokens per second, and every refusal with its code."""
        options = [
            {"lane": o.lane.name, "drafter": o.drafter, "k": o.k, "tokens_per_s": round(o.rate, 2)}
            for o in self.possible
        ]
        return options + [{"lane": r.lane, "drafter": r.drafter, "refused": r.code} for r in self.refused]


#: Other options and refusals that the reasons name; `candidates` has all.
_MAX_SHOWN = 3


def _refusals(refused: Sequence[Refusal]) -> Iterator[str]:
    for refusal in refused[:_MAX_SHOWN]:
        what = f"{refusal.drafter} on {refusal.lane}" if refusal.drafter else refusal.lane
        yield f"not {what}: {REASONS[refusal.code].format(detail=refusal.detail)}"


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
        decision = self._decide(policy, features, hints, lanes, now_s)
        trial = policy.trial
        if trial is None or decision.rule == "request":
            return decision
        self._num_tried[policy.workload] = number = self._num_tried.get(policy.workload, 0) + 1
        if int(number * trial.share) == int((number - 1) * trial.share):
            return decision
        other = self._decide(self._by_name[trial.workload], features, hints, lanes, now_s)
        if trial.mode == "shadow":
            return replace(decision, trial=f"shadow {trial.workload} would run: {other.option.shown}")
        role = f"canary of workload {policy.workload}"
        return replace(other, role=role, trial=f"{policy.workload} would run: {decision.option.shown}")

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Take in how a decided request went."""
        self.learner.learn(decision, feedback)

    def _workload(self, features: Features, origin: Origin | None) -> WorkloadPolicy:
        for policy, match in self._by_task[features.task]:
            if _matches(match, features, origin):
                return policy
        return self._default

    def _decide(
        self, policy: WorkloadPolicy, features: Features, hints: Hints, lanes: Sequence[LaneView], now_s: float
    ) -> Decision:
        drafter = None if hints.is_off else hints.drafter
        kind = self._surveyor.kind(policy, features, drafter, hints.k or None)
        rows = self._surveyor.rows(kind, features, lanes, now_s)
        settled = _plain(rows, "request") if hints.is_off else self._settler.settle(kind, rows)
        if settled is None and kind.is_fixed and policy.fallback == "plain":
            settled = _plain(rows, "unserved")
        if settled is None:
            raise InvalidRequest(_unserved(kind, hints, rows), param="outrider")
        option, rule = settled
        plan = Plan(option.drafter, option.k) if option.k else PLAN_OFF
        load = next((view.load for view in lanes if view.ability is option.lane), None)
        return Decision(plan, policy.workload, rule, features, option, kind, rows, load, self.learner.rounds)


def _plain(rows: Sequence[Row], rule: str) -> Settled | None:
    best = plain_of(rows)
    return None if best is None else Settled(best, rule)


def _matches(match: Match, features: Features, origin: Origin | None) -> bool:
    """The task has been looked at already."""
    origin = origin or _NOWHERE
    return (
        (match.models is None or origin.model in match.models)
        and (match.tenants is None or features.tenant in match.tenants)
        and (match.headers is None or all(origin.headers.get(k.lower()) == v for k, v in match.headers.items()))
    )


_NOWHERE = Origin()


def _unserved(kind: Kind, hints: Hints, rows: Sequence[Row]) -> str:
    if hints.is_off:
        what = "no lane can run without speculation"
    elif kind.is_fixed:
        asked = [f"drafter {kind.drafter}"] if kind.drafter else []
        asked += [f"k {kind.k}"] if kind.k else []
        what = f"no lane can run {' and '.join(asked)}"
    else:
        what = "no lane can serve the request"
    return "; ".join([what, *_refusals([refusal for row in rows for refusal in row.refused])])
