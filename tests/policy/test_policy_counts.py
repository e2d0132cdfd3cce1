"""Counts: what a histogram says of each depth, by hand."""

from __future__ import annotations

import pytest

from outrider.core import SpecStats
from outrider.policy.counts import Counts, depth_counts


def stats(histogram: list[int], num_proposed: int | None = None) -> SpecStats:
    return SpecStats(sum(histogram), sum(i * n for i, n in enumerate(histogram)), tuple(histogram), num_proposed)


@pytest.mark.parametrize("num_proposed", [None, 30, 90])
@pytest.mark.parametrize("may_miss", [True, False])
def test_drafts_that_were_proposed_and_not_taken_are_rejections(num_proposed: int | None, may_miss: bool) -> None:
    """Counts of proposals change nothing where all were verified, or more: those of trees."""
    counts = depth_counts(stats([4, 3, 2, 1], num_proposed), 3, may_miss=may_miss)
    assert counts == [(10, 6), (6, 3), (3, 1)]


@pytest.mark.parametrize(
    ("histogram", "num_proposed", "may_miss", "counts"),
    [
        # All were cut to two.
        ([4, 3, 3, 0], 20, False, [(10, 6), (6, 3), (0, 0)]),
        # Half had two and half three.
        ([0, 0, 5, 5], 25, False, [(10, 10), (10, 10), (5, 5)]),
        ([0, 5, 5], 20, False, [(10, 10), (10, 5), (0, 0)]),
        # A look-up missed four times and always had two else; a miss is a rejection of the first.
        ([4, 0, 6], 12, True, [(10, 6), (6, 6), (0, 0)]),
        # Nothing was proposed.
        ([10], 0, False, [(0, 0), (0, 0), (0, 0)]),
        ([10], 0, True, [(10, 0), (0, 0), (0, 0)]),
        # A lane that counts less than it accepts: nothing was wasted.
        ([1, 1], 0, False, [(1, 1), (0, 0), (0, 0)]),
    ],
)
def test_drafts_that_were_never_proposed_are_no_trials(
    histogram: list[int], num_proposed: int, may_miss: bool, counts: list[tuple[float, int]]
) -> None:
    """Of k 3: as many as the wasted drafts allow are rejections."""
    assert depth_counts(stats(histogram, num_proposed), 3, may_miss=may_miss) == counts


def test_a_tree_is_counted_by_its_drafts() -> None:
    """Of ten trees of four nodes the first was accepted in five, and so on; a later draft that was accepted more
    often counts as one that always was where the one before it was."""
    tree = SpecStats(10, 10, (3, 4, 3), 40, by_draft=(5, 3, 2))
    assert depth_counts(tree, 4, may_miss=False) == [(10, 5), (5, 3), (3, 2), (2, 0)]
    odd = SpecStats(10, 9, (3, 5, 2), 30, by_draft=(2, 4, 3))
    assert depth_counts(odd, 3, may_miss=False) == [(10, 2), (4, 4), (4, 3)]


def test_deep_depths_are_added_up() -> None:
    """Five are told apart."""
    counts = Counts.of([(9, 8), (8, 7), (7, 6), (6, 5), (5, 4), (4, 3)])
    assert (counts.trials, counts.successes) == ([9, 8, 7, 6, 9], [8, 7, 6, 5, 7])
