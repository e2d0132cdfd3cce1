"""Key/value cache: one contiguous region per sequence, written at the end, cut back after a rejection."""

from __future__ import annotations

import torch

from outrider.engine.checkpoint import ModelConfig


class SequenceCache:
    """Keys and values of one sequence. `length` positions are valid; the rest is room reserved for later ones."""

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        shape = (config.num_layers, config.num_kv_heads, capacity, config.head_dim)
        # Memory is touched only when positions are written, so a large reservation costs little before that.
        self.keys = list(torch.empty(shape))
        self.values = list(torch.empty(shape))
        self.capacity = capacity
        self.length = 0

    def extend(self, num_rows: int) -> None:
        """Declare that the next `num_rows` positions have been written in every layer."""
        assert self.length + num_rows <= self.capacity, (self.length, num_rows, self.capacity)
        self.length += num_rows

    def truncate(self, length: int) -> None:
        """Forget positions from `length` on: they belong to rejected draft tokens."""
        assert 0 <= length <= self.length, (length, self.length)
        self.length = length


class CachePool:
    """Counts reserved positions over all sequences, so that admitted requests can always finish."""

    def __init__(self, config: ModelConfig, max_total_tokens: int) -> None:
        self._config = config
        self.max_total_tokens = max_total_tokens
        self.num_reserved = 0

    def can_allocate(self, capacity: int) -> bool:
        return self.num_reserved + capacity <= self.max_total_tokens

    def allocate(self, capacity: int) -> SequenceCache:
        assert self.can_allocate(capacity), (capacity, self.num_reserved, self.max_total_tokens)
        self.num_reserved += capacity
        return SequenceCache(self._config, capacity)

    def free(self, cache: SequenceCache) -> None:
        self.num_reserved -= cache.capacity
        assert self.num_reserved >= 0, self.num_reserved
