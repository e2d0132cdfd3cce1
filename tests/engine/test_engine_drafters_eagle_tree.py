"""Shapes of draft trees: grown by confidence or chosen by calibration, always the best of their size."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cost import MAX_DEPTH
from outrider.engine.drafters.eagle_tree import TOP_K, USUAL_ACCURACY, Nodes, best_shape, chances_of, grow, parents_of

LOGITS = torch.randn(7, 9, generator=torch.Generator().manual_seed(1)) * 2


def expand(frontier: list[int], nodes: Nodes) -> torch.Tensor:
    """What follows depends on the last token only."""
    return LOGITS[[nodes.tokens[node] % 7 for node in frontier]]


@pytest.mark.parametrize("k", [1, 2, 4, 8, 16])
def test_the_best_nodes_are_kept_with_their_ancestors(k: int) -> None:
    """Scores are sums of log probabilities; the kept ones are the highest of all that were looked at."""
    nodes = grow(LOGITS[0], expand, k, USUAL_ACCURACY)
    kept = nodes.best(k)
    assert len(kept) == k and kept == sorted(kept)
    assert all(nodes.parents[node] in (-1, *kept) for node in kept)
    worst = min(nodes.scores[node] for node in kept)
    assert all(nodes.scores[node] <= worst for node in range(len(nodes.tokens)) if node not in kept)
    laws = LOGITS.log_softmax(dim=-1)
    for node in kept:
        path, at = [], node
        while at >= 0:
            path.insert(0, nodes.tokens[at])
            at = nodes.parents[at]
        assert len(path) <= min(MAX_DEPTH, k)
        states = [0, *(token % 7 for token in path)]
        expected = sum(float(laws[state, token]) for state, token in zip(states, path, strict=False))
        assert nodes.scores[node] == pytest.approx(expected, abs=1e-4)


def test_a_tree_of_one_depth_and_width_is_the_whole_search() -> None:
    """The likeliest pair of tokens is in it, wherever it begins among the likeliest first tokens."""
    laws = LOGITS.log_softmax(dim=-1)
    pairs = {
        (a, b): float(laws[0, a] + laws[a % 7, b]) for a in laws[0].topk(TOP_K).indices.tolist() for b in range(9)
    }
    best = max(pairs, key=lambda pair: pairs[pair])
    nodes = grow(LOGITS[0], expand, 8, USUAL_ACCURACY)
    found = {(nodes.tokens[p], t) for t, p in zip(nodes.tokens, nodes.parents, strict=True) if p >= 0}
    assert best in found


def unpruned(k: int) -> tuple[list[float], list[int]]:
    """As the paper has it: the best new nodes of each depth are followed, whatever comes of it; scores of the best
    nodes, and nodes that were followed at each depth."""
    nodes, followed = Nodes(), []
    frontier = list(nodes.add(-1, *reversed(_top(LOGITS[:1])[0])))
    for _ in range(min(MAX_DEPTH, k) - 1):
        followed.append(len(frontier))
        rows = _top(expand(frontier, nodes))
        new = [node for at, (values, ids) in zip(frontier, rows, strict=True) for node in nodes.add(at, ids, values)]
        frontier = sorted(sorted(new, key=lambda node: -nodes.scores[node])[:TOP_K])
    return sorted(nodes.scores, reverse=True)[:k], followed


def _top(logits: torch.Tensor) -> list[tuple[list[float], list[int]]]:
    values, ids = logits.log_softmax(dim=-1).topk(TOP_K, dim=-1)
    return list(zip(values.tolist(), ids.tolist(), strict=True))


def counted(k: int, min_gain: float = 0.0) -> tuple[Nodes, list[int]]:
    """A tree, and how many nodes each draft step followed."""
    followed: list[int] = []

    def counting(frontier: list[int], nodes: Nodes) -> torch.Tensor:
        followed.append(len(frontier))
        return expand(frontier, nodes)

    return grow(LOGITS[0], counting, k, USUAL_ACCURACY, min_gain), followed


@pytest.mark.parametrize("k", [2, 3, 4, 5, 8, 16])
def test_what_cannot_be_kept_is_not_followed(k: int) -> None:
    """The tree is the one that follows all, with less drafted for it; of many nodes nothing can be left out."""
    nodes, followed = counted(k)
    scores, whole = unpruned(k)
    assert sorted((nodes.scores[node] for node in nodes.best(k)), reverse=True) == pytest.approx(scores)
    assert len(followed) <= len(whole) and all(a <= b for a, b in zip(followed, whole, strict=False))
    assert sum(followed) < sum(whole) or k == 16


def test_a_tree_ends_where_a_step_does_not_pay() -> None:
    """The dearer a draft step, the fewer are run, down to none; a head that is never right is not followed at all."""
    whole = len(counted(16)[1])
    steps = [len(counted(16, min_gain)[1]) for min_gain in (0.0, 0.05, 0.2, 0.4, 2.0)]
    assert steps[0] == whole == MAX_DEPTH - 1 and steps[-1] == 0
    assert steps == sorted(steps, reverse=True) and len(set(steps)) > 2
    never = ((0.0,) * TOP_K,)
    assert len(grow(LOGITS[0], expand, 16, never, 1e-9).tokens) == TOP_K


accuracies = st.lists(
    st.lists(st.floats(0.01, 0.9), min_size=2, max_size=3).map(lambda row: tuple(sorted(row, reverse=True))),
    min_size=1, max_size=3,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(accuracies, st.integers(1, 8))
def test_the_static_shape_is_the_likeliest_of_its_size(accuracy: list[tuple[float, ...]], k: int) -> None:
    """No path outside it is likelier than one inside, parents come first, and it has as many as there are."""

    every = [
        path
        for depth in range(1, len(accuracy) + 1)
        for path in itertools.product(*(range(len(row)) for row in accuracy[:depth]))
    ]
    shape = best_shape(accuracy, k)
    assert len(shape) == len(set(shape)) == min(k, len(every))
    outside = max(chances_of([path for path in every if path not in shape], accuracy), default=0.0)
    chances = chances_of(shape, accuracy)
    assert all(chance >= outside * (1 - 1e-9) for chance in chances)
    assert chances[0] == accuracy[0][0]
    assert all(one >= other * (1 - 1e-9) for one, other in itertools.pairwise(chances))
    assert all(parent < node for node, parent in enumerate(parents_of(shape)))
