"""Plans on a lane: what it can honour, and the caps that follow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from outrider.policy.plan import PLAN_OFF, Plan
from outrider.sglang_plugin.lane_plan import LaneLimits, caps


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (None, LaneLimits("off", 0)),
        ("NGRAM", LaneLimits("ngram", 7)),
        ("STANDALONE", LaneLimits("draft_model", 3)),
        ("EAGLE", LaneLimits("eagle2", 3)),
        ("EAGLE3", LaneLimits("eagle3", 3)),
    ],
)
def test_limits_come_from_the_launch(algorithm: str | None, expected: LaneLimits) -> None:
    """An n-gram lane accepts as many drafts as its tree has nodes below the root, others as many as steps."""
    arguments = SimpleNamespace(
        speculative_algorithm=algorithm, speculative_num_steps=3, speculative_num_draft_tokens=8
    )
    assert LaneLimits.of(arguments) == expected


def test_plans_of_ours_pass() -> None:
    """Every plan up to the lane's k in the form that it travels in, none, and other people's parameters."""
    lane = LaneLimits("ngram", 4)
    for plan in (PLAN_OFF, *(Plan("ngram", k) for k in range(1, 5))):
        lane.check({"outrider": plan.to_wire(), "else": 1})
    lane.check({"else": 1})
    lane.check(None)


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (5, "custom_params.outrider must be an object"),
        ({"drafter": "ngram", "k": 5}, r"\.k must be an integer between 0 and 4"),
        ({"drafter": "ngram", "k": -1}, r"\.k must"),
        ({"drafter": "ngram", "k": True}, r"\.k must"),
        ({"drafter": "ngram"}, r"\.k must"),
        ({"drafter": "ngram", "k": 0}, "exactly when"),
        ({"drafter": "off", "k": 2}, "exactly when"),
        ({"drafter": "eagle2", "k": 2}, r"\.drafter must be 'ngram' or 'off'"),
        ({"drafter": "ngram", "k": 2, "tree": 3}, "unknown key 'tree'"),
    ],
)
def test_what_cannot_be_honoured_is_named(plan: Any, named: str) -> None:
    """Nothing is clamped or left out silently."""
    with pytest.raises(ValueError, match=named):
        LaneLimits("ngram", 4).check({"outrider": plan})


def test_caps_of_a_batch() -> None:
    """A request without a plan may use all that the lane drafts."""
    plans: list[dict[str, Any] | None] = [None, {}, {"outrider": {"drafter": "off", "k": 0}}]
    plans.append({"outrider": {"drafter": "ngram", "k": 2}})
    requests = [SimpleNamespace(sampling_params=SimpleNamespace(custom_params=plan)) for plan in plans]
    assert caps(requests, 4) == [4, 4, 0, 2]
