"""What a drafter hands to verification. A proposal's kind is its type; the verifier dispatches on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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


@dataclass(frozen=True, slots=True)
class TopKTree:
    """A tree of tokens that the prefix determines: node i follows node `parents[i]` < i, or for -1 the prefix."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class SampledChain:
    """A chain of drawn tokens: token i was drawn from row i of `draft_probs` [K, V] float64."""

    token_ids: tuple[int, ...]
    draft_probs: torch.Tensor

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class SampledTree:
    """A tree of drawn tokens; the children of a node were drawn without replacement, in order.

    `draft_probs` [nodes + 1, V] float64: row 0 is the law after the committed prefix, row i + 1 the law after node i.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    draft_probs: torch.Tensor

    def __len__(self) -> int:
        return len(self.token_ids)


Proposal = PointMass | TopKTree | SampledChain | SampledTree

NO_DRAFT = PointMass(())
