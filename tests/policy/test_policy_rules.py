"""The committed JSON Schema, and files that are valid by shape but cannot mean what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.config import packaged_data
from outrider.policy.rules import WorkloadPolicy, contradictions, policy_schema


def test_committed_schema_is_current() -> None:
    """Regenerate with: outrider policy schema > policies/policy.schema.json"""
    committed = json.loads((packaged_data("policies") / "policy.schema.json").read_text(encoding="utf-8"))
    assert committed == policy_schema()


def test_schema_offers_no_null() -> None:
    """Editors must not propose what the loader refuses."""
    assert "null" not in json.dumps(policy_schema())


def policy(*rules: dict[str, Any]) -> WorkloadPolicy:
    full = [{"off": True, "reason": "r", **rule} for rule in rules]
    return WorkloadPolicy.model_validate({"version": 1, "workload": "w", "rules": full})


HOT = {"temperature": {"min": 1.0}}


@pytest.mark.parametrize(
    ("rules", "location"),
    [
        (({"name": "a", "when": HOT}, {"name": "a"}), ("rules", 1, "name")),
        (({"name": "request"},), ("rules", 0, "name")),
        (({"name": "no-rule"},), ("rules", 0, "name")),
        (({"name": "a"}, {"name": "b", "when": HOT}), ("rules", 1)),
    ],
)
def test_contradictions(rules: tuple[dict[str, Any], ...], location: tuple[str | int, ...]) -> None:
    """Repeated and reserved names and rules out of reach are found, each at its place."""
    assert [where for where, _ in contradictions(policy(*rules))] == [location]


def test_sound_policy_has_no_contradiction() -> None:
    """A last rule without conditions is how a file ends."""
    assert not list(contradictions(policy({"name": "a", "when": HOT}, {"name": "b"})))
