"""Attention over the rows of many sequences, behind one shape: made once per step, called once per layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.engine.kv_cache import SequenceCache


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one sequence in a batch: they follow the `cache.length` positions that are already cached."""

    cache: SequenceCache
    token_ids: tuple[int, ...]
    num_logits: int
    """How many of the last rows need logits: all of a verify step, the last of a prompt, else none."""
    parents: tuple[int, ...] | None = None
    """Of a tree: row i + 1 is node i and follows row parents[i] + 1, where parents[i] < i. None: rows are a chain."""

    def __post_init__(self) -> None:
        if self.parents is not None:
            assert len(self.parents) == len(self.token_ids) - 1, (self.parents, self.token_ids)
            assert all(-1 <= parent < node for node, parent in enumerate(self.parents)), self.parents

    @property
    def depths(self) -> list[int]:
        """Of each row, how many positions it comes after the first one."""
        if self.parents is None:
            return list(range(len(self.token_ids)))
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return depths

    @property
    def visible(self) -> torch.Tensor:
        """bool [rows, rows]: which of the segment's rows a row sees. Itself and those it follows."""
        count = len(self.token_ids)
        if self.parents is None:
            return torch.ones(count, count, dtype=torch.bool).tril_()
        visible = torch.eye(count, dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            visible[node + 1] |= visible[parent + 1]
        return visible
