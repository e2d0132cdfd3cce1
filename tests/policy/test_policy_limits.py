"""The committed JSON Schema, and files that are valid by shape but cannot mean what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from policy_world import lane, workload
from pydantic import ValidationError

from outrider.config import packaged_data
from outrider.core import LaneAbility
from outrider.policy.limits import WorkloadPolicy, beyond, contradictions, policy_schema, unmet


def test_committed_schema_is_current() -> None:
    """Regenerate with: outrider policy schema > policies/policy.schema.json"""
    committed = json.loads((packaged_data("policies") / "policy.schema.json").read_text(encoding="utf-8"))
    assert committed == policy_schema()


def test_schema_offers_no_null() -> None:
    """Editors must not propose what the loader refuses."""
    assert "null" not in json.dumps(policy_schema())


@pytest.mark.parametrize(
    ("fields", "location"),
    [
        ({"temperature": [{"max": 0.5}, {"max": 0.3}]}, ("temperature", 1, "max")),
        ({"temperature": [{"max": 0.5}, {"max": 0.5}]}, ("temperature", 1, "max")),
        ({"load": [{"max_k": 2}, {"max": 3}]}, ("load", 0)),
        ({"load": [{"max": 1}, {"max": 4}, {"max": 2}]}, ("load", 2, "max")),
        ({"trial": {"workload": "only", "mode": "shadow"}}, ("trial", "workload")),
        ({"task": "quote", "match": {"tasks": ["code", "edit"]}}, ("task",)),
        ({"drafters": {"suffix": {"learn": False}, "ngram": {"learn": False}}}, ("drafters", "ngram", "learn")),
    ],
)
def test_contradictions(fields: dict[str, Any], location: tuple[str | int, ...]) -> None:
    """Descending, overlapping and open bands, a trial of itself, a task that it is not for, and a look-up of no past
    that is not to learn."""
    assert [where for where, _ in contradictions(workload(**fields))] == [location]


def test_a_sound_policy_has_no_contradiction() -> None:
    """An open last band is how bands end."""
    assert not list(contradictions(workload(temperature=[{"max": 0.5}, {"max_k": 1}], load=[{"max": 3}])))
    assert not list(contradictions(workload(task="code", match={"tasks": ["code", "edit"]})))


@pytest.mark.parametrize(
    ("drafters", "location", "message"),
    [
        ({"suffix": {}}, ("drafters", "suffix"), "one of draft_model"),
        ({"draft_model": {"max_k": 9}}, ("drafters", "draft_model", "max_k"), "at most 7"),
        ({"draft_model": {"min_k": 8, "max_k": 9}}, ("drafters", "draft_model", "max_k"), "at most 7"),
    ],
)
def test_what_no_lane_can_do(drafters: Any, location: tuple[str, ...], message: str) -> None:
    """A drafter that no lane has, and a k above what any lane allows."""
    found = list(beyond(workload(drafters=drafters), [lane(ks=(1, 3, 7)), LaneAbility("plain", ())]))
    assert [where for where, _ in found] == [location]
    assert message in found[0][1]


def test_lanes_that_can_do_it_and_lanes_that_are_not_known() -> None:
    """Nothing to say where some lane can or lanes are not given; a trial must name a workload that is there."""
    assert not list(beyond(workload(drafters={"draft_model": {"max_k": 3}}), [lane(ks=(1, 3, 7))]))
    assert not list(beyond(workload(drafters={"suffix": {}}), []))
    tried = workload(trial={"workload": "gone", "mode": "canary"})
    assert [where for where, _ in unmet(tried, ["only"])] == [("trial", "workload")]


@pytest.mark.parametrize(
    "fields",
    [{"objective": {}}, {"objective": {"tpot_ms": 5, "deadline_s": 1}}, {"match": {}},
     {"drafters": {"ngram": {"min_k": 3, "max_k": 2}}}, {"exploration": {"share": 0.5}}],
)  # fmt: skip
def test_shapes_that_are_refused(fields: dict[str, Any]) -> None:
    """Nothing and both of a choice, empty matches, crossed bounds, and too much exploration."""
    with pytest.raises(ValidationError):
        WorkloadPolicy.model_validate({"version": 1, "workload": "w", "drafters": {}} | fields)
