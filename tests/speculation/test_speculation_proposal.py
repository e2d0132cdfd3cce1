"""Proposals: their shape is checked when they are made."""

from __future__ import annotations

import pytest
import torch

from outrider.speculation.proposal import NO_DRAFT, PointMass, SampledChain, SampledTree, TopKTree

ROWS = torch.full((2, 3), 1 / 3, dtype=torch.float64)


def test_a_chain_s_tokens_follow_one_another() -> None:
    """Each token's parent is the one before; the first follows the prefix."""
    assert PointMass((4, 5, 6)).parents == (-1, 0, 1)
    assert SampledChain((1, 2), ROWS).parents == (-1, 0)
    assert NO_DRAFT.parents == () and len(NO_DRAFT) == 0


def test_a_chain_can_be_cut() -> None:
    """Its beginning with the laws that belong to it; nothing else of it is a chain after the prefix."""
    assert PointMass((4, 5, 6)).only((0, 1)) == PointMass((4, 5))
    cut = SampledChain((1, 2), ROWS).only((0,))
    assert cut.token_ids == (1,) and torch.equal(cut.draft_probs, ROWS[:1])
    for chain in (PointMass((4, 5, 6)), SampledChain((1, 2), ROWS)):
        with pytest.raises(ValueError, match="only a beginning"):
            chain.only((1,))


def test_a_tree_can_be_cut_where_ancestors_stay() -> None:
    """Nodes are numbered anew and keep their laws; a node whose parent is gone is refused."""
    tokens, parents = (4, 5, 6, 7), (-1, -1, 1, 2)
    laws = torch.arange(15, dtype=torch.float64).view(5, 3)
    assert TopKTree(tokens, parents).only((1, 2)) == TopKTree((5, 6), (-1, 0))
    cut = SampledTree(tokens, parents, laws).only((1, 2))
    assert (cut.token_ids, cut.parents) == ((5, 6), (-1, 0)) and torch.equal(cut.draft_probs, laws[[0, 2, 3]])
    for tree in (TopKTree(tokens, parents), SampledTree(tokens, parents, laws)):
        assert tree.only(range(4)) is tree
        with pytest.raises(ValueError, match="node 3 cannot be kept without its parent"):
            tree.only((0, 3))


@pytest.mark.parametrize("parents", [(-1, 1), (-1, -2), (0, 0)])
def test_a_parent_comes_before_its_children(parents: tuple[int, ...]) -> None:
    """No cycles, and nothing before the prefix."""
    with pytest.raises(ValueError, match="must be -1 or an earlier node"):
        TopKTree((1, 2), parents)


def test_every_token_has_one_parent() -> None:
    """As many parents as tokens."""
    with pytest.raises(ValueError, match="2 tokens need as many parents, not 1"):
        SampledTree((1, 2), (-1,), torch.zeros(3, 3))


def test_every_sampled_token_has_a_law() -> None:
    """A chain needs one row per token, a tree one more for its root."""
    with pytest.raises(ValueError, match="needs 1 rows of draft laws, not 2"):
        SampledChain((1,), ROWS)
    with pytest.raises(ValueError, match="needs 3 rows of draft laws, not 2"):
        SampledTree((1, 2), (-1, -1), ROWS)
