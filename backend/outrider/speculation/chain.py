"""Rejection rules for a sampled chain: token by token, and as a block."""

from __future__ import annotations

import torch

from outrider.speculation.noise import Coins
from outrider.speculation.outcome import Verified, likelihood_ratio, residual
from outrider.speculation.proposal import SampledChain
from outrider.speculation.target import Target


def token_rejection(target: Target, coins: Coins, proposal: SampledChain) -> Verified:
    """Accept a token with probability min(1, target / draft), else draw from the residual (arXiv 2211.17192).

    The rule that block verification is measured against, and is never worse than; so `verify` does not choose it.
    """
    tokens = proposal.token_ids
    for i, token in enumerate(tokens):
        target_probs, draft_probs = target.probs(i, tokens[:i]), proposal.draft_probs[i]
        if not coins.accept(min(1.0, likelihood_ratio(target_probs, draft_probs, token))):
            return _emitted(tokens[:i], coins.draw(residual(target_probs, draft_probs)))
    return _emitted(tokens, coins.draw(target.probs(len(tokens), tokens)))


def block_verification(target: Target, coins: Coins, proposal: SampledChain) -> Verified:
    """Accept the longest prefix whose own coin says so, each weighed by all its tokens (arXiv 2403.10444).

    A prefix weighs w = min(w of the one before * target / draft, 1). The whole chain is accepted with probability w,
    a shorter prefix with probability R / (R + 1 - w), where R is the mass of max(w * target - draft, 0) in the row
    after it; that residual is also the law of the recovered token. Never fewer accepted in the mean than token by
    token, and no chain rule has more; for deterministic drafts both are equal, and sample-and-match is cheaper.
    """
    tokens = proposal.token_ids
    weights, laws = _weighed(target, proposal)

    def keeps(i: int) -> float:
        if i == len(tokens):
            return weights[i]
        mass = float((weights[i] * laws[i] - proposal.draft_probs[i]).clamp_(min=0.0).sum())
        return mass / (mass + (1.0 - weights[i])) if mass > 0.0 else 0.0

    length = len(weights) - 1
    while length > 0 and not coins.accept(keeps(length)):
        length -= 1
    if length == len(tokens):
        return _emitted(tokens, coins.draw(laws[length]))
    rest = residual(weights[length] * laws[length], proposal.draft_probs[length])
    return _emitted(tokens[:length], coins.draw(rest))


def _weighed(target: Target, proposal: SampledChain) -> tuple[list[float], list[torch.Tensor]]:
    """Weight of each prefix and the law after it, up to the first impossible token: behind it there is no law."""
    tokens = proposal.token_ids
    weights, laws = [1.0], [target.probs(0, ())]
    for i, token in enumerate(tokens):
        weight = min(weights[i] * likelihood_ratio(laws[i], proposal.draft_probs[i], token), 1.0)
        if weight == 0.0:
            break
        weights.append(weight)
        laws.append(target.probs(i + 1, tokens[: i + 1]))
    return weights, laws


def _emitted(accepted: tuple[int, ...], last: int) -> Verified:
    return Verified((*accepted, last), tuple(range(len(accepted))))
