"""The plan that was taken last: how long it is held, by what it is beaten, and what is followed at once."""

from __future__ import annotations

import pytest
from policy_world import lane

from outrider.policy.incumbent import Incumbent
from outrider.policy.options import Option
from outrider.policy.rounds import Occupancy

LANE = lane()


def option(k: int, rate: float) -> Option:
    return Option(rate, 0, LANE, "draft_model", k, Occupancy(1, 0, True))


def taken(best: Option, held: Option, num: int, *, num_held: int = 0) -> list[int]:
    """The k of so many decisions, after so many in which the held one was the best."""
    incumbent = Incumbent("draft_model", held.k, 1)
    for _ in range(num_held):
        incumbent.settle(held, held)
    return [incumbent.settle(best, held if incumbent.k == held.k else best).k for _ in range(num)]


@pytest.mark.parametrize(("num_held", "num_kept"), [(0, 7), (5, 2), (20, 2)])
def test_a_longer_plan_waits_for_the_dwell_and_for_a_streak(num_held: int, num_kept: int) -> None:
    """Clearly better from the first decision on, it is taken at the eighth, and of one that was held at the third."""
    assert taken(option(5, 120), option(3, 100), 12, num_held=num_held) == [3] * num_kept + [5] * (12 - num_kept)


def test_fewer_drafts_that_are_clearly_better_are_taken_at_once() -> None:
    """Load is shed first by shortening drafts."""
    assert taken(option(1, 106), option(3, 100), 3) == [1, 1, 1]


@pytest.mark.parametrize(("rate", "num_kept"), [(100.5, 40), (103.0, 15)])
def test_a_plan_that_is_a_little_behind_is_not_kept_for_ever(rate: float, num_kept: int) -> None:
    """And one that is as good as the best is."""
    assert taken(option(5, rate), option(3, 100), 40) == [3] * num_kept + [5] * (40 - num_kept)
