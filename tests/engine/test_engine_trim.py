"""Trimming drafts: never worse than any other choice of lengths, and off when nothing pays."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.trim import trim


def rate(kept: list[int], acceptance: list[float], rows_s: list[float]) -> float:
    """Expected tokens per second of a choice of lengths."""
    tokens = sum(sum(a**j for j in range(n + 1)) for n, a in zip(kept, acceptance, strict=True))
    return tokens / rows_s[sum(kept) + len(kept)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 1.0)), min_size=1, max_size=3),
    st.lists(st.floats(0.0, 5.0), min_size=13, max_size=13),
)
def test_no_other_choice_of_lengths_has_a_better_rate(sequences: list[tuple[int, float]], steps: list[float]) -> None:
    """For any acceptance and any ascending cost: compared with all choices."""
    proposed, acceptance = [n for n, _ in sequences], [a for _, a in sequences]
    rows_s = [1.0 + sum(steps[:i]) for i in range(len(steps) + 1)]
    kept = trim(proposed, acceptance, lambda rows: rows_s[rows])
    assert all(k <= n for k, n in zip(kept, proposed, strict=True))
    best = max(rate(list(c), acceptance, rows_s) for c in product(*(range(n + 1) for n in proposed)))
    assert rate(kept, acceptance, rows_s) == pytest.approx(best)


def test_flat_cost_keeps_all_and_steep_cost_keeps_none() -> None:
    """Where rows are free everything is verified; where each row costs a whole step nothing is."""
    assert trim([5, 2], [0.3, 0.9], lambda rows: 1.0) == [5, 2]
    assert trim([5, 2], [0.3, 0.9], lambda rows: float(rows)) == [0, 0]


def test_a_full_step_spends_its_rows_where_they_are_accepted() -> None:
    """With a knee in the cost, the sequence with the better drafter gets the rows before it."""
    assert trim([5, 5], [0.2, 0.9], lambda rows: 1.0 if rows <= 6 else 3.0) == [0, 4]


def test_prompt_rows_count() -> None:
    """Rows of prompts in the same step have spent the cheap part already."""

    def knee(rows: int) -> float:
        return 1.0 + max(rows - 6, 0)

    assert trim([4], [0.1], knee) == [4]
    assert trim([4], [0.1], knee, num_other_rows=20) == [1]
