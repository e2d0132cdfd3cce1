"""Tree rules: exact for any law and shape, better without replacement, and swapped residuals show."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from enumeration import WORLDS, Branches, Prefix, World, integrate, point_mass

from outrider.speculation.proposal import PointMass, SampledTree, TopKTree
from outrider.speculation.target import SamplingLaw, Target
from outrider.speculation.tree import recursive_rejection, sample_and_match

RANDOM = WORLDS["random"]
SHAPES = [(), (3,), (2, 1), (1, 2)]
with_replacement = partial(recursive_rejection, is_replaced=True)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_recursive_rejection_is_exact(world: World) -> None:
    """To 1e-12 for any law and shape, with children drawn without and with replacement."""
    without = {shape: world.error(world.sampled_tree(*shape), recursive_rejection) for shape in SHAPES}
    drawn = {s: world.error(world.sampled_tree(*s, is_replaced=True), with_replacement) for s in SHAPES}
    assert max(without.values()) < 1e-12, without
    assert max(drawn.values()) < 1e-12, drawn


def test_a_wide_tree_is_exact() -> None:
    """Two levels of two children each."""
    assert RANDOM.error(RANDOM.sampled_tree(2, 2), recursive_rejection) < 1e-12


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_sample_and_match_is_exact(world: World) -> None:
    """For top-k trees, sampled trees and arbitrary chains, whatever the drafter."""
    drafts = [
        world.top_tree(2, 2), world.top_tree(3), world.sampled_tree(2, is_replaced=True),
        point_mass(0, 1), point_mass(3, 2), point_mass(2, 3),
    ]  # fmt: skip
    errors = [world.error(draft, sample_and_match) for draft in drafts]
    assert max(errors) < 1e-12, errors


@pytest.mark.parametrize(
    "law", [SamplingLaw(0.0), SamplingLaw(0.8, top_k=2), SamplingLaw(1.1, top_p=0.7, min_p=0.05)], ids=str
)
def test_trees_are_exact_under_filters(law: SamplingLaw) -> None:
    """The target's filters need none of the drafter."""
    assert RANDOM.error(RANDOM.sampled_tree(2, 1), recursive_rejection, law) < 1e-12
    assert RANDOM.error(RANDOM.top_tree(2, 2), sample_and_match, law) < 1e-12


def test_more_children_accept_more_and_without_replacement_most() -> None:
    """One level: two children beat one, and two different ones beat two that may be equal."""
    one, two = (RANDOM.mean_accepted(RANDOM.sampled_tree(n), recursive_rejection) for n in (1, 2))
    replaced = RANDOM.mean_accepted(RANDOM.sampled_tree(2, is_replaced=True), with_replacement)
    assert one < replaced < two
    target, draft = RANDOM.target[0], RANDOM.draft[0]
    assert one == pytest.approx(float(torch.minimum(target, draft).sum()), abs=1e-12)


def test_the_path_names_the_accepted_nodes() -> None:
    """Nodes of a branchy greedy tree: the walk follows argmax children, wherever they stand."""
    logits = torch.full((6, 4), -9.0)
    tree = TopKTree((0, 1, 3, 2, 0), (-1, -1, 0, 1, 3))
    for row, token in ((0, 1), (2, 2), (4, 0), (5, 3)):
        logits[row, token] = 9.0
    verified = sample_and_match(Target(logits, SamplingLaw(0.0)), Branches(), tree)
    assert (verified.token_ids, verified.path, verified.num_accepted) == ((1, 2, 0, 3), (1, 3, 4), 3)


def test_recursive_rejection_names_its_path_too() -> None:
    """A second child accepted at the root, and its child after it."""
    flat = torch.full((4, 3), 1 / 3, dtype=torch.float64)
    logits = torch.full((4, 3), -torch.inf)
    for row, token in ((0, 2), (2, 0), (3, 1)):
        logits[row, token] = 0.0
    tree = SampledTree((1, 2, 0), (-1, -1, 1), flat)
    certain = [
        verified
        for weight, verified in integrate(lambda c: recursive_rejection(Target(logits, SamplingLaw()), c, tree))
        if verified.token_ids == (2, 0, 1)
    ]
    assert certain and {verified.path for verified in certain} == {(1, 2)}


def test_an_exhausted_draft_law_leaves_the_residual() -> None:
    """When the children were all that the draft law had, the recovered token is drawn from what is left."""
    world = WORLDS["zeros in draft"]
    assert world.error(world.sampled_tree(3, 3), recursive_rejection) < 1e-12
    tree = SampledTree((1, 0), (-1, -1), torch.tensor([[0.0, 1.0, 0.0]] * 3, dtype=torch.float64))
    target = Target(torch.tensor([[0.0, -torch.inf, 0.0]] * 3), SamplingLaw())
    with pytest.raises(ValueError, match="token 0 cannot have been drawn"):
        list(integrate(lambda coins: recursive_rejection(target, coins, tree)))


# Mutants


@pytest.mark.parametrize("shape", [(2,), (2, 1), (3,)])
def test_a_residual_of_the_other_kind_of_draft_is_caught(shape: tuple[int, ...]) -> None:
    """The residual with replacement is wrong for children drawn without it, and the other way round."""
    assert RANDOM.error(RANDOM.sampled_tree(*shape), with_replacement) > 1e-3
    world = WORLDS["zeros in draft"]
    assert world.error(world.sampled_tree(*shape), with_replacement) > 1e-3


def test_children_chosen_by_their_draft_probability_are_caught() -> None:
    """Submitting only the sampled children that the drafter itself finds likely bends the law."""

    def pruned(coins: Branches, prefix: Prefix) -> SampledTree:
        tree = RANDOM.sampled_tree(2)(coins, prefix)
        kept = tuple(t for t in tree.token_ids if float(tree.draft_probs[0, t]) > 0.3)
        return SampledTree(kept, (-1,) * len(kept), tree.draft_probs[[0] * (len(kept) + 1)])

    assert RANDOM.error(pruned, recursive_rejection) > 1e-3


def test_a_sampled_tree_ordered_by_probability_is_caught() -> None:
    """Children must be tried in the order in which they were drawn, not best first."""

    def best_first(coins: Branches, prefix: Prefix) -> SampledTree:
        tree = RANDOM.sampled_tree(2)(coins, prefix)
        tokens = tuple(sorted(tree.token_ids, key=lambda t: -float(tree.draft_probs[0, t])))
        return SampledTree(tokens, tree.parents, tree.draft_probs)

    assert RANDOM.error(best_first, recursive_rejection) > 1e-3


def test_a_pruned_deterministic_tree_is_exact() -> None:
    """Where nothing was drawn, any selection is exact: the one above would be no mistake for a top-k tree."""

    def pruned(_: Branches, prefix: Prefix) -> PointMass:
        best = int(RANDOM.draft[prefix[-1]].argmax())
        return PointMass((best,) if float(RANDOM.draft[prefix[-1], best]) > 0.5 else ())

    assert RANDOM.error(pruned, sample_and_match) < 1e-12
