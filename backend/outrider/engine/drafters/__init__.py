"""Drafters of the embedded engine, behind one protocol."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from outrider.speculation.proposal import Proposal


class Drafter(Protocol):
    """Proposes tokens for one sequence. It sees every committed token in order, and nothing that was rejected."""

    def observe(self, token_id: int) -> None:
        """A token was committed."""

    def propose(self, k: int) -> Proposal:
        """At most `k` >= 1 tokens to follow the committed ones; empty when it has no idea."""

    def free(self) -> None:
        """The sequence ended; called once."""


@runtime_checkable
class FeatureDrafter(Drafter, Protocol):
    """A drafter that reads the target's hidden states."""

    @property
    def points(self) -> tuple[int, ...]:
        """Which states, as `Taps` numbers them."""

    def observe_features(self, start: int, features: torch.Tensor) -> None:
        """features [n, len(points) * hidden] of the committed positions from `start` on.

        Each position comes once, in order, but for two cases: what was preempted is read and shown again, and what a
        cached beginning holds is never shown.
        """
