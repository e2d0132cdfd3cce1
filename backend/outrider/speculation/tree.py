"""Rules that walk a tree from the root: sample-and-match for any proposal, recursive rejection for a sampled one."""

from __future__ import annotations

import torch

from outrider.speculation.noise import Coins
from outrider.speculation.outcome import Verified, likelihood_ratio, residual
from outrider.speculation.proposal import Proposal, SampledTree
from outrider.speculation.target import Target


def sample_and_match(target: Target, coins: Coins, proposal: Proposal) -> Verified:
    """Draw the target's own token at each node and descend while a child equals it; greedy laws take the argmax.

    What is emitted is what plain decoding emits, whatever was proposed. For a deterministic draft x it is the exact
    rejection rule too (arXiv 2211.17192 with a point mass): the token equals x with probability target(x), and given
    that it does not, it has exactly the residual law. An empty proposal is plain decoding. When the drafter drew with
    the same noise, this is shared-noise matching (arXiv 2408.07978).
    """
    child_of: dict[tuple[int, int], int] = {}
    for node, (parent, token) in enumerate(zip(proposal.parents, proposal.token_ids, strict=True)):
        child_of.setdefault((parent, token), node)
    node = -1
    path: list[int] = []
    emitted: tuple[int, ...] = ()
    near_ties: list[int] = []
    while True:
        token, is_near_tie = target.choose(node + 1, emitted, coins)
        if is_near_tie:
            near_ties.append(len(emitted))
        emitted = (*emitted, token)
        child = child_of.get((node, token))
        if child is None:
            return Verified(emitted, tuple(path), tuple(near_ties))
        path.append(child)
        node = child


def recursive_rejection(
    target: Target, coins: Coins, proposal: SampledTree, *, is_replaced: bool = False
) -> Verified:
    """Try a node's children in turn, each against what the ones before have left of target and draft law.

    Without replacement (arXiv 2402.14160), the default, a rejected child leaves the draft law; `is_replaced` is the
    rule for children that were drawn independently of each other (arXiv 2305.09781). Those accept less, so no drafter
    here draws them and `verify` does not choose it: it is what the default is measured against.
    """
    node = -1
    path: list[int] = []
    emitted: tuple[int, ...] = ()
    while True:
        rest = target.probs(node + 1, emitted)
        draft_probs = proposal.draft_probs[node + 1]
        accepted = None
        for child in (i for i, parent in enumerate(proposal.parents) if parent == node):
            token = proposal.token_ids[child]
            if coins.accept(min(1.0, likelihood_ratio(rest, draft_probs, token))):
                accepted = child
                break
            # The whole current draft law is subtracted before the token is taken out of it.
            rest = residual(rest, draft_probs)
            rest = rest / rest.sum()
            draft_probs = draft_probs if is_replaced else _without(draft_probs, token)
        if accepted is None:
            return Verified((*emitted, coins.draw(rest)), tuple(path))
        path.append(accepted)
        emitted = (*emitted, proposal.token_ids[accepted])
        node = accepted


def _without(draft_probs: torch.Tensor, token_id: int) -> torch.Tensor:
    """[V]: the law renormalised without a token; all zero when it was the only one."""
    rest = draft_probs.clone()
    rest[token_id] = 0.0
    return rest / rest.sum().clamp_(min=torch.finfo(torch.float64).tiny)
