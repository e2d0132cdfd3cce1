"""What a drafter hands to verification. A proposal's kind is its type; the verifier dispatches on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PointMass:
    """A chain of tokens that the prefix determines: given it, each draft law is a point mass at its token.

    Nothing random was drawn, so any number of them may be submitted or dropped without biasing the output.
    """

    token_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.token_ids)

    def first(self, k: int) -> PointMass:
        return self if k >= len(self) else PointMass(self.token_ids[:k])


NO_DRAFT = PointMass(())
