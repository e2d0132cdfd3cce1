"""Medusa's typical acceptance: lossy. What it emits has another law than the target's; `verify` never uses it."""

from __future__ import annotations

import math

import torch

from outrider.speculation.noise import Coins
from outrider.speculation.outcome import Verified
from outrider.speculation.proposal import Proposal
from outrider.speculation.target import Target

#: Of the published code: a token is typical above min(EPSILON, DELTA * exp(-entropy)) of the target's law.
EPSILON, DELTA = 0.09, 0.3


def typical_acceptance(target: Target, coins: Coins, proposal: Proposal) -> Verified:
    """The longest path of typical tokens (arXiv 2401.10774), then a token of the target's law after it.

    Of equally long paths the first. Nothing is left out of the last token's law, and accepted tokens are taken
    whatever their rivals' probability: likely tokens come too often.
    """
    paths: dict[int, tuple[int, ...]] = {-1: ()}
    best: tuple[int, ...] = ()
    for node, (parent, token) in enumerate(zip(proposal.parents, proposal.token_ids, strict=True)):
        above = paths.get(parent)
        if above is None:
            continue
        probs = target.probs(parent + 1, tuple(proposal.token_ids[i] for i in above))
        if float(probs[token]) > threshold(probs):
            paths[node] = (*above, node)
            best = max(best, paths[node], key=len)
    emitted = tuple(proposal.token_ids[node] for node in best)
    last = best[-1] if best else -1
    return Verified((*emitted, coins.draw(target.probs(last + 1, emitted))), best)


def threshold(probs: torch.Tensor) -> float:
    """probs [V]: the probability above which a token is typical."""
    entropy = float(torch.special.entr(probs).sum())
    return min(EPSILON, DELTA * math.exp(-entropy))
