"""What a verification rule returns, and the two steps that rejection rules share.

Words used here: *accepted* draft tokens stay; *recovered* is the token put in place of the first rejected one;
*bonus* is the extra token when all are accepted; *emitted* is accepted plus recovered or bonus.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of one verify step; `token_ids` ends with the recovered or bonus token."""

    token_ids: tuple[int, ...]
    path: tuple[int, ...]
    """Indices of the accepted nodes, from the root on."""
    near_ties: tuple[int, ...] | None = None
    """Which of the emitted tokens rounding could have changed. None, unknown, after rejection: there is no telling
    how often its coins and residuals would have led elsewhere."""

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.path) + 1, (self.token_ids, self.path)

    @property
    def num_accepted(self) -> int:
        """Drafts that were kept."""
        return len(self.path)


def likelihood_ratio(target_probs: torch.Tensor, draft_probs: torch.Tensor, token_id: int) -> float:
    """Target over draft probability of a drawn token; ValueError when its law cannot have drawn it."""
    drawn_with = float(draft_probs[token_id])
    if drawn_with <= 0.0:
        raise ValueError(f"token {token_id} cannot have been drawn from its draft law")
    return float(target_probs[token_id]) / drawn_with


def residual(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Weights [V] of the recovered token: max(target - draft, 0), not normalised.

    All zero would mean that the draft covers the target, which is then rejected through rounding only.
    """
    rest = (target_probs - draft_probs).clamp_(min=0.0)
    return rest if bool(rest.any()) else target_probs
