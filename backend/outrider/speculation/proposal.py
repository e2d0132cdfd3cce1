"""What a drafter hands to verification. A proposal's kind is its type; the verifier dispatches on it.

A proposal of n tokens needs n + 1 rows of target logits: row 0 after the committed prefix, row i + 1 after token i
and its ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    def _check_prefix(self, nodes: Sequence[int]) -> None:
        if any(node != place for place, node in enumerate(nodes)):
            raise ValueError(f"of a chain only a beginning can be kept, not {list(nodes)}")


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

    def _parents_among(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Parents of `nodes`, numbered by their places in it; ValueError when one is not there."""
        place = {-1: -1} | {node: i for i, node in enumerate(nodes)}
        orphans = [node for node in nodes if self.parents[node] not in place]
        if orphans:
            raise ValueError(f"node {orphans[0]} cannot be kept without its parent")
        return tuple(place[self.parents[node]] for node in nodes)


def _check_chances(chances: tuple[float, ...] | None, num_tokens: int) -> None:
    if chances is not None and len(chances) != num_tokens:
        raise ValueError(f"{num_tokens} tokens need as many chances, not {len(chances)}")


@dataclass(frozen=True, slots=True)
class PointMass(_Chain):
    """A chain of tokens that the prefix determines: given it, each draft law is a point mass at its token.

    Nothing random was drawn, so any number of them may be submitted or dropped without biasing the output.
    """

    token_ids: tuple[int, ...]
    chances: tuple[float, ...] | None = None
    """The drafter's own estimate of how likely each token is accepted, if it has one; never above the one before."""

    def __post_init__(self) -> None:
        _check_chances(self.chances, len(self))

    def only(self, nodes: Sequence[int]) -> PointMass:
        """The beginning that these nodes are."""
        self._check_prefix(nodes)
        count = len(nodes)
        if count == len(self):
            return self
        return PointMass(self.token_ids[:count], None if self.chances is None else self.chances[:count])


@dataclass(frozen=True, slots=True)
class TopKTree(_Tree):
    """A tree of tokens that the prefix determines; any part of it that keeps ancestors may be submitted."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    chances: tuple[float, ...] | None = None
    """The drafter's own estimate of how likely each node is accepted, if it has one; not above its parent's."""

    def __post_init__(self) -> None:
        self._check_parents()
        _check_chances(self.chances, len(self))

    def only(self, nodes: Sequence[int]) -> TopKTree:
        """These nodes, ascending and with every ancestor."""
        if len(nodes) == len(self):
            return self
        chances = None if self.chances is None else tuple(self.chances[node] for node in nodes)
        return TopKTree(tuple(self.token_ids[node] for node in nodes), self._parents_among(nodes), chances)


@dataclass(frozen=True, slots=True, eq=False)
class SampledChain(_Chain):
    """A chain whose token i was drawn from row i of `draft_probs` [K, V] float64.

    Whether token i is submitted must not depend on its value, nor on that of a later one.
    """

    token_ids: tuple[int, ...]
    draft_probs: torch.Tensor

    def __post_init__(self) -> None:
        _check_rows(self.draft_probs, len(self))

    def only(self, nodes: Sequence[int]) -> SampledChain:
        """The beginning that these nodes are."""
        self._check_prefix(nodes)
        count = len(nodes)
        return self if count == len(self) else SampledChain(self.token_ids[:count], self.draft_probs[:count])


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

    def only(self, nodes: Sequence[int]) -> SampledTree:
        """These nodes, ascending and with every ancestor; of siblings the first drawn must be kept first."""
        if len(nodes) == len(self):
            return self
        rows = self.draft_probs[[0, *(node + 1 for node in nodes)]]
        return SampledTree(tuple(self.token_ids[node] for node in nodes), self._parents_among(nodes), rows)


Proposal: TypeAlias = PointMass | TopKTree | SampledChain | SampledTree

NO_DRAFT = PointMass(())


def _check_rows(draft_probs: torch.Tensor, num_rows: int) -> None:
    if draft_probs.shape[0] != num_rows:
        raise ValueError(f"the proposal needs {num_rows} rows of draft laws, not {draft_probs.shape[0]}")
