"""Verification: which draft tokens stay and which token follows, so that the output has the target's law.

Words used here: *accepted* draft tokens stay; *recovered* is the token put in place of the first rejected one;
*bonus* is the extra token when all are accepted; *emitted* is accepted plus recovered or bonus.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.speculation.proposal import PointMass, Proposal, SampledChain
from outrider.speculation.target import SamplingLaw, choose


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of one verify step; `token_ids` ends with the recovered or bonus token."""

    token_ids: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        return len(self.token_ids) - 1


def verify(logits: torch.Tensor, law: SamplingLaw, uniforms: torch.Tensor, proposal: Proposal) -> Verified:
    """Rows of target logits [K + 1, V] and uniforms [K + 1] for a proposal of K tokens -> emitted tokens.

    Row i is the target's law after the prefix and the first i draft tokens. For a point mass at x the exact rule
    (arXiv 2211.17192 with a one-hot draft law) accepts with probability p(x) and else draws from p without x,
    renormalised. Drawing y from p and accepting when y equals x is that rule: y equals x with probability p(x),
    and given that it does not, y has exactly the residual law. An empty proposal is plain decoding. Matching is
    exact for a drawn chain too, whatever law it was drawn from.
    """
    if not isinstance(proposal, PointMass | SampledChain):
        raise TypeError(f"no rule for {type(proposal).__name__}")
    if logits.shape[0] != len(proposal) + 1:
        raise ValueError(f"{len(proposal)} draft tokens need {len(proposal) + 1} rows, not {logits.shape[0]}")
    drawn: list[int] = choose(logits, law, uniforms).tolist()
    num_accepted = 0
    while num_accepted < len(proposal) and drawn[num_accepted] == proposal.token_ids[num_accepted]:
        num_accepted += 1
    return Verified(tuple(drawn[: num_accepted + 1]))
