"""Drafters of the embedded engine, behind one protocol."""

from __future__ import annotations

from typing import Protocol

from outrider.speculation.proposal import Proposal


class Drafter(Protocol):
    """Proposes tokens for one sequence. It sees every committed token in order, and nothing that was rejected."""

    def observe(self, token_id: int) -> None:
        """A token was committed."""

    def propose(self, k: int) -> Proposal:
        """At most `k` >= 1 tokens to follow the committed ones; empty when it has no idea."""

    def free(self) -> None:
        """The sequence ended; called once."""
