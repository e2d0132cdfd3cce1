"""Trimming drafts: never worse than any other choice of nodes, and off when nothing pays."""

from __future__ import annotations

from itertools import chain, combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.trim import survival, trim


def rate(kept: list[list[int]], trees: list[list[int]], acceptance: list[float], rows_s: list[float]) -> float:
    """Expected tokens per second of a choice of nodes."""
    chances = [survival(tree, a) for tree, a in zip(trees, acceptance, strict=True)]
    tokens = len(trees) + sum(chances[i][node] for i, nodes in enumerate(kept) for node in nodes)
    return tokens / rows_s[sum(map(len, kept)) + len(kept)]


def is_closed(nodes: tuple[int, ...], tree: list[int]) -> bool:
    return all(tree[node] in (-1, *nodes) for node in nodes)


def closed_parts(tree: list[int]) -> list[list[int]]:
    """Every choice of a tree's nodes that has their ancestors."""
    subsets = chain.from_iterable(combinations(range(len(tree)), size) for size in range(len(tree) + 1))
    return [list(nodes) for nodes in subsets if is_closed(nodes, tree)]


trees_of = st.lists(st.integers(-1, 3), max_size=4).map(
    lambda wished: [min(parent, node - 1) for node, parent in enumerate(wished)]
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(trees_of, st.floats(0.0, 1.0)), min_size=1, max_size=3),
    st.lists(st.floats(0.0, 5.0), min_size=16, max_size=16),
)
def test_no_other_choice_of_nodes_has_a_better_rate(
    sequences: list[tuple[list[int], float]], steps: list[float]
) -> None:
    """For any shapes, acceptance and ascending cost: compared with all choices that keep ancestors."""
    trees, acceptance = [tree for tree, _ in sequences], [a for _, a in sequences]
    rows_s = [1.0 + sum(steps[:i]) for i in range(len(steps) + 1)]
    kept = trim(trees, acceptance, lambda rows: rows_s[rows])
    assert all(is_closed(tuple(nodes), tree) for nodes, tree in zip(kept, trees, strict=True))
    best = max(rate(list(choice), trees, acceptance, rows_s) for choice in product(*map(closed_parts, trees)))
    assert rate(kept, trees, acceptance, rows_s) == pytest.approx(best)


def chain_of(length: int) -> list[int]:
    return list(range(-1, length - 1))


def sizes(kept: list[list[int]]) -> list[int]:
    return [len(nodes) for nodes in kept]


def test_a_sibling_counts_only_where_those_before_it_failed() -> None:
    """Chances of a node, its second child and a chain below the first, by hand."""
    assert survival([-1, -1, 0, 0, 2], 0.8) == pytest.approx([0.8, 0.16, 0.64, 0.128, 0.512])


def test_flat_cost_keeps_all_and_steep_cost_keeps_none() -> None:
    """Where rows are free everything is verified; where each row costs a whole step nothing is."""
    assert sizes(trim([chain_of(5), [-1, -1]], [0.3, 0.9], lambda rows: 1.0)) == [5, 2]
    assert sizes(trim([chain_of(5), [-1, -1]], [0.3, 0.9], lambda rows: float(rows))) == [0, 0]


def test_a_full_step_spends_its_rows_where_they_are_accepted() -> None:
    """With a knee in the cost, the sequence with the better drafter gets the rows before it."""
    assert sizes(trim([chain_of(5), chain_of(5)], [0.2, 0.9], lambda rows: 1.0 if rows <= 6 else 3.0)) == [0, 4]


@pytest.mark.parametrize(("acceptance", "kept"), [(0.9, [0, 2, 3]), (0.3, [0, 1, 4])], ids=["deep", "wide"])
def test_a_tree_is_cut_to_depth_or_to_width(acceptance: float, kept: list[int]) -> None:
    """Of two chains and a third child, a good drafter's rows go down one path, a poor one's to the alternatives."""
    assert trim([[-1, -1, 0, 2, -1]], [acceptance], lambda rows: 1.0 if rows <= 4 else 9.0) == [kept]


def test_prompt_rows_count() -> None:
    """Rows of prompts in the same step have spent the cheap part already."""

    def knee(rows: int) -> float:
        return 1.0 + max(rows - 6, 0)

    assert sizes(trim([chain_of(4)], [0.1], knee)) == [4]
    assert sizes(trim([chain_of(4)], [0.1], knee, num_other_rows=20)) == [1]
