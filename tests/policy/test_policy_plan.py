"""The plan keeps its invariant and its wire form."""

from __future__ import annotations

import pytest

from outrider.core import MAX_K
from outrider.policy.plan import PLAN_OFF, Plan


def test_wire_form_round_trips() -> None:
    """What `to_wire` writes, `from_wire` reads."""
    for plan in (
        PLAN_OFF,
        Plan("ngram", 1),
        Plan("ngram", MAX_K),
        Plan("suffix", 4, learn=False),
        Plan("hybrid", 4, learn=False),
    ):
        assert Plan.from_wire(plan.to_wire()) == plan


@pytest.mark.parametrize(
    ("drafter", "k"), [("ngram", 0), ("off", 1), ("ngram", MAX_K + 1), ("ngram", -1), ("magic", 2)]
)
def test_impossible_plans_are_refused(drafter: str, k: int) -> None:
    """`k` is 0 exactly when off, within bounds, and the drafter is a known one."""
    with pytest.raises(ValueError, match=r"drafter|k "):
        Plan(drafter, k)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"drafter": 1, "k": 2}, "drafter"),
        ({"drafter": "ngram", "k": "2"}, "k must"),
        ({"drafter": "ngram", "k": True}, "k must"),
        ({"drafter": "ngram", "k": 2, "tree": 1}, "tree"),
        ({"drafter": "suffix", "k": 2, "learn": 0}, "learn must"),
        ({"drafter": "ngram", "k": 2, "learn": False}, "learn is of suffix and hybrid alone"),
        ({}, "drafter"),
    ],
)
def test_bad_wire_data_names_the_field(data: dict[str, object], field: str) -> None:
    """Nothing of another type, and no unknown key, becomes a plan."""
    with pytest.raises(ValueError, match=field):
        Plan.from_wire(data)
