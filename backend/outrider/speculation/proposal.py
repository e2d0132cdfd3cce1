"""What a drafter hands to verification. A proposal's kind is its type; the verifier dispatches on it.

A proposal of n tokens needs n + 1 rows of target logits: row 0 after the committed prefix, row i + 1 after token i
and its ancestors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch


class _Chain:
    """Tokens that follow one another."""

    __slots__ = ()
    token_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def parents(self) -> tuple[int, ...]:
        return tuple(range(-1, len(self) - 1))


class _Tree:
    """Tokens of which each follows its parent; -1 is the committed prefix."""

    __slots__ = ()
    token_ids: tuple[int, ...]
    parents: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.token_ids)

    def _check_parents(self) -> None:
        if len(self.parents) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} tokens need as many parents, not {len(self.parents)}")
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise ValueError(f"the parent of node {node} must be -1 or an earlier node, not {parent}")


@dataclass(frozen=True, slots=True)
class PointMass(_Chain):
    """A chain of tokens that the prefix determines: given it, each draft law is a point mass at its token.

    Nothing random was drawn, so any number of them may be submitted or dropped without biasing the output.
    """

    token_ids: tuple[int, ...]

    def first(self, k: int) -> PointMass:
        return self if k >= len(self) else PointMass(self.token_ids[:k])


@dataclass(frozen=True, slots=True)
class TopKTree(_Tree):
    """A tree of tokens that the prefix determines; any part of it that keeps ancestors may be submitted."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        self._check_parents()


@dataclass(frozen=True, slots=True, eq=False)
class SampledChain(_Chain):
    """A chain whose token i was drawn from row i of `draft_probs` [K, V] float64.

    Whether token i is submitted must not depend on its value, nor on that of a later one.
    """

    token_ids: tuple[int, ...]
    draft_probs: torch.Tensor

    def __post_init__(self) -> None:
        _check_rows(self.draft_probs, len(self))

    def first(self, k: int) -> SampledChain:
        return self if k >= len(self) else SampledChain(self.token_ids[:k], self.draft_probs[:k])


@dataclass(frozen=True, slots=True, eq=False)
class SampledTree(_Tree):
    """A tree whose children were drawn without replacement, in node order, from their parent's law.

    `draft_probs` [n + 1, V] float64 holds the whole laws: row 0 the committed prefix's, row i + 1 node i's.
    How many children a node has must not depend on which they are.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    draft_probs: torch.Tensor

    def __post_init__(self) -> None:
        self._check_parents()
        _check_rows(self.draft_probs, len(self) + 1)


Proposal: TypeAlias = PointMass | TopKTree | SampledChain | SampledTree

NO_DRAFT = PointMass(())


def _check_rows(draft_probs: torch.Tensor, num_rows: int) -> None:
    if draft_probs.shape[0] != num_rows:
        raise ValueError(f"the proposal needs {num_rows} rows of draft laws, not {draft_probs.shape[0]}")
