"""Memory of the caches that a drafting model keeps outside the target's pool: counted, and bounded."""

from __future__ import annotations

from typing import Protocol

from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import BLOCK_SIZE, SequenceCache, blocks_for
from outrider.engine.placement import Placement


class DraftingModel(Protocol):
    """What keeps a cache while it drafts."""

    @property
    def config(self) -> ModelConfig:
        """Shapes of the model."""

    @property
    def placement(self) -> Placement:
        """Where its weights lie, and its caches must."""

    @property
    def cache_bytes_per_token(self) -> int:
        """What one position takes in all layers."""

    def new_cache(self, num_positions: int) -> SequenceCache:
        """For one sequence."""


class DraftMemory:
    """Caches of one drafting model, together of at most `max_positions` positions."""

    def __init__(self, model: DraftingModel, max_positions: int, num_layers: int | None = None) -> None:
        """`num_layers`: how many layers are run; on a CPU, the others' part of a cache is never touched, so costs
        nothing."""
        self._model = model
        self.max_positions = max_positions
        self.num_reserved = 0
        """Positions of the caches that are in use now."""
        num_held = num_layers if num_layers and model.placement.is_cpu else model.config.num_layers
        self.bytes_per_token = model.cache_bytes_per_token * num_held // model.config.num_layers

    @property
    def context_length(self) -> int:
        """Positions that the drafting model can take."""
        return self._model.config.context_length

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the positions that are taken."""
        return self.num_reserved * self.bytes_per_token

    @property
    def max_bytes(self) -> int:
        """Bytes of the positions that may be taken."""
        return self.max_positions * self.bytes_per_token

    def take(self, num_positions: int) -> SequenceCache | None:
        """A cache of at least that size, in whole blocks; None as long as others hold too much."""
        if self.num_reserved + blocks_for(num_positions) * BLOCK_SIZE > self.max_positions:
            return None
        cache = self._model.new_cache(num_positions)
        self.num_reserved += cache.capacity
        return cache

    def give_back(self, cache: SequenceCache) -> None:
        """The caller drops this cache now."""
        self.num_reserved -= cache.capacity
        assert self.num_reserved >= 0, self.num_reserved
