"""Small worlds for policy tests: requests, lanes and workloads with few knobs."""

from __future__ import annotations

from typing import Any

from outrider.core import DrafterAbility, Hints, LaneAbility, LaneLoad, LaneView
from outrider.cost import ClosedCost
from outrider.policy.decide import PolicySet
from outrider.policy.decision import Decision
from outrider.policy.features import Features
from outrider.policy.limits import WorkloadPolicy

NOW_S = 100.0
EMBEDDED = LaneAbility.embedded("one")


def features(task: str = "chat", temperature: float = 0.0, **other: Any) -> Features:
    values: dict[str, Any] = {
        "is_task_given": True,
        "num_prompt_chars": 40,
        "num_prompt_tokens": 10,
        "dry_run": 0.0,
        "num_messages": 1,
        "is_stream": False,
    }
    asked = {"surfaces": {name: name for name in other.pop("surfaces", ())}}
    return Features(temperature=temperature, task=task, **{**values, **other, **asked})


def workload(name: str = "only", drafters: Any = None, **fields: Any) -> WorkloadPolicy:
    data = {"version": 1, "workload": name, "drafters": {"ngram": {"max_k": 5}} if drafters is None else drafters}
    return WorkloadPolicy.model_validate(data | fields)


def only(**fields: Any) -> PolicySet:
    """A set of one workload."""
    return PolicySet([workload(**fields)], "only")


def lane(name: str = "one", drafter: str = "draft_model", ks: Any = range(1, 17), **fields: Any) -> LaneAbility:
    """A lane of one drafter on a flat cost with a knee."""
    return LaneAbility(name, (DrafterAbility(drafter, tuple(ks)),), **fields)


def toy_cost(draft: float = 0.05, knee: float = 256) -> ClosedCost:
    """Rounds that cost max(1, rows / knee), and draft steps of a share of that."""
    return ClosedCost(0.02, knee, draft_steps=dict.fromkeys(("draft_model", "eagle3"), draft))


def view(ability: LaneAbility, num_others: int | None = 0, **load: Any) -> LaneView:
    """A lane with so many other requests, or of unknown load."""
    if num_others is None:
        return LaneView(ability, None)
    values = {"num_running": num_others, "num_waiting": 0, "max_running": ability.max_running, "read_at_s": NOW_S}
    return LaneView(ability, LaneLoad(**(values | load)))


def decide(policies: PolicySet, found: Features, *views: LaneView, **hints: Any) -> Decision:
    return policies.decide(found, Hints(**hints), views or [view(EMBEDDED)], NOW_S)
