"""The decision: from features, hints and load to a plan, and the reasons. Pure; the caller gives the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider.core import DRAFTERS, Hints, LaneLoad
from outrider.policy.features import Features
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.policy.rules import (
    RULE_NONE,
    RULE_PREDICTION,
    RULE_REQUEST,
    PlanRule,
    Range,
    Rule,
    When,
    WorkloadPolicy,
)

#: Draft tokens per step from a prediction: nearly all are accepted until the answer departs from it.
PREDICTION_K = 8


@dataclass(frozen=True, slots=True)
class Decision:
    """How one request is to be speculated, by which rule, and why."""

    plan: Plan
    workload: str
    """Name of the policy file that was asked."""
    rule: str
    """The rule that decided; `request` when the request's hints did, `prediction` when the request carries one and is
    speculated, `no-rule` when no rule held."""
    reasons: tuple[str, ...]
    """Readable sentences, in the order in which they came to bear."""
    features: Features
    load: LaneLoad | None
    """The load as it was given, also when it was too old to be used."""


class PolicySet:
    """The policy files of one directory, in file-name order."""

    def __init__(self, policies: Sequence[WorkloadPolicy], default: str) -> None:
        """`default` names the workload for tasks that none matches; KeyError when it is not among `policies`."""
        self._by_name = {policy.workload: policy for policy in policies}
        self._default = self._by_name[default]
        self._by_task: dict[str, WorkloadPolicy] = {}
        for policy in policies:
            for task in policy.match.tasks if policy.match else ():
                self._by_task.setdefault(task, policy)

    @property
    def workloads(self) -> tuple[str, ...]:
        """Names of the workloads, in file-name order."""
        return tuple(self._by_name)

    def is_exact(self, workload: str) -> bool:
        """Whether requests of this workload are refused rather than sampled in another way than asked."""
        return self._by_name[workload].exact

    def decide(self, features: Features, hints: Hints, load: LaneLoad | None, now_s: float) -> Decision:
        """The plan for one request. `load` is the lane's without this request; None means unknown, which is not idle.

        `now_s` is `time.monotonic()`; a reading older than the policy's `load_max_age_s` counts as unknown.
        """
        policy = self._by_task.get(features.task)
        source = "given by the request" if features.is_task_given else "guessed"
        task = f"task {features.task} ({source})"
        why = (
            f"{task} belongs to workload {policy.workload}"
            if policy
            else f"no workload is for {task}, so the default"
        )
        policy = policy or self._default
        if hints.is_off:
            off_reason = ("the request turned speculation off",)
            return Decision(PLAN_OFF, policy.workload, RULE_REQUEST, off_reason, features, load)
        plan, rule, reasons = _apply_rules(policy, features, load, now_s)
        plan, override = _apply_hints(plan, hints, policy.default_k)
        if override:
            rule, reasons = RULE_REQUEST, (*reasons, override)
        if features.has_prediction and not plan.is_off and hints.drafter is None:
            plan, rule = Plan("prediction", hints.k or PREDICTION_K), RULE_PREDICTION
            reasons = (*reasons, "the request carries a prediction, which is a better draft than any other")
        return Decision(plan, policy.workload, rule, (why, *reasons), features, load)


@dataclass(frozen=True, slots=True)
class _Check:
    """One condition: whether it holds, with the value seen."""

    holds: bool
    text: str


def _apply_rules(
    policy: WorkloadPolicy, features: Features, load: LaneLoad | None, now_s: float
) -> tuple[Plan, str, tuple[str, ...]]:
    """The plan, name and reasons of the first rule that holds; off when none does."""
    missing = _why_load_is_unknown(load, now_s, policy.load_max_age_s)
    num_requests = None if missing or load is None else load.num_requests
    skipped: list[str] = []
    for rule in policy.rules:
        checks = tuple(_checks(rule.when, features, num_requests)) if rule.when else ()
        if not all(check.holds for check in checks):
            continue
        if num_requests is None and rule.when and rule.when.requests:
            skipped.append(rule.name)
            continue
        texts = (check.text for check in checks)
        return _plan_of(rule), rule.name, (*_skip_reason(skipped, missing), *texts, rule.reason)
    return PLAN_OFF, RULE_NONE, (*_skip_reason(skipped, missing), f"no rule of workload {policy.workload} holds")


def _skip_reason(skipped: Sequence[str], missing: str | None) -> tuple[str, ...]:
    return (f"{missing}, so these rules do not apply: {', '.join(skipped)}",) if skipped else ()


def _plan_of(rule: Rule) -> Plan:
    return Plan(rule.drafter, rule.k) if isinstance(rule, PlanRule) else PLAN_OFF


def _why_load_is_unknown(load: LaneLoad | None, now_s: float, max_age_s: float) -> str | None:
    """None when the load is known."""
    if load is None:
        return "the lane's load is unknown"
    age_s = now_s - load.read_at_s
    if age_s > max_age_s:
        return f"the lane's load is unknown, the last reading is {age_s:.1f} s old (> {max_age_s:g} s)"
    return None


def _checks(when: When, features: Features, num_requests: int | None) -> Iterator[_Check]:
    """The conditions that can be checked; the one on the load is left out while the load is unknown."""
    if when.tasks:
        yield _Check(features.task in when.tasks, f"task {features.task} in {', '.join(when.tasks)}")
    if when.temperature:
        yield _within(when.temperature, features.temperature, f"temperature {features.temperature:g}")
    if when.prompt_tokens:
        tokens = features.num_prompt_tokens
        yield _within(when.prompt_tokens, tokens, f"{tokens} prompt tokens")
    if when.self_repetition:
        share = features.self_repetition
        yield _within(when.self_repetition, share, f"prompt self-repetition {share:.3g}")
    if when.requests and num_requests is not None:
        noun = "request" if num_requests == 1 else "requests"
        yield _within(when.requests, num_requests, f"{num_requests} {noun} on the lane")


def _within(bounds: Range[float] | Range[int], value: float, text: str) -> _Check:
    holds = True
    if bounds.min is not None:
        holds = value >= bounds.min
        text += f" >= {bounds.min:g}"
    if bounds.max is not None:
        holds = holds and value <= bounds.max
        text += f"{' and' if bounds.min is not None else ''} <= {bounds.max:g}"
    return _Check(holds, text)


def _apply_hints(plan: Plan, hints: Hints, default_k: int) -> tuple[Plan, str | None]:
    """The rule's plan with what the request fixes, and a sentence about it; None when it fixes nothing."""
    if hints.drafter is None and hints.k is None:
        return plan, None
    drafter = hints.drafter or (DRAFTERS[0] if plan.is_off else plan.drafter)
    k = hints.k or (default_k if plan.is_off else plan.k)
    asked = [f"drafter {hints.drafter}"] if hints.drafter else []
    asked += [f"k {hints.k}"] if hints.k else []
    return Plan(drafter, k), f"the request fixed {' and '.join(asked)}"
