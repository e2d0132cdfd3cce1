"""Verification: which draft tokens stay and which token follows, so that the output has the target's law."""

from __future__ import annotations

from collections.abc import Callable

from outrider.speculation.chain import block_verification
from outrider.speculation.noise import Coins
from outrider.speculation.outcome import Verified
from outrider.speculation.proposal import Proposal, SampledChain, SampledTree
from outrider.speculation.target import Target
from outrider.speculation.tree import recursive_rejection, sample_and_match

__all__ = ["Rule", "Verified", "verify"]

#: The shape of `verify`, and of each rule.
Rule = Callable[[Target, Coins, Proposal], Verified]


def verify(target: Target, noise: Coins, proposal: Proposal) -> Verified:
    """A proposal and its target rows -> accepted nodes and emitted tokens, by the rule that fits the proposal's kind.

    Greedy laws, seeded requests and deterministic proposals are sampled and matched: the output is then plain
    decoding's own. Other sampled drafts are accepted more often by rejection: a chain as a block, a tree recursively.
    """
    num_rows = target.logits.shape[0]
    if num_rows != len(proposal) + 1:
        raise ValueError(f"{len(proposal)} draft tokens need {len(proposal) + 1} rows, not {num_rows}")
    if not (target.law.is_greedy or noise.is_seeded):
        if isinstance(proposal, SampledChain):
            return block_verification(target, noise, proposal)
        if isinstance(proposal, SampledTree):
            return recursive_rejection(target, noise, proposal)
    return sample_and_match(target, noise, proposal)
