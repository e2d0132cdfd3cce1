"""Memory of the caches that a drafting model keeps outside the target's pool: counted, and bounded."""

from __future__ import annotations

from typing import Protocol

from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import SequenceCache


class DraftingModel(Protocol):
    """What keeps a cache while it drafts."""

    @property
    def config(self) -> ModelConfig: ...

    def new_cache(self, num_positions: int) -> SequenceCache: ...


class DraftMemory:
    """Caches of one drafting model, together of at most `max_positions` positions."""

    def __init__(self, model: DraftingModel, max_positions: int, num_layers: int | None = None) -> None:
        """`num_layers`: how many layers are run; the others' part of a cache is never touched, so costs nothing."""
        self._model = model
        self.max_positions = max_positions
        self.num_reserved = 0
        """Positions of the caches that are in use now."""
        self.bytes_per_token = (
            model.config.cache_bytes_per_token * (num_layers or model.config.num_layers) // model.config.num_layers
        )

    @property
    def context_length(self) -> int:
        """Positions that the drafting model can take."""
        return self._model.config.context_length

    @property
    def reserved_bytes(self) -> int:
        return self.num_reserved * self.bytes_per_token

    @property
    def max_bytes(self) -> int:
        return self.max_positions * self.bytes_per_token

    def take(self, num_positions: int, num_scratch: int = 0) -> SequenceCache | None:
        """A cache of that size; None as long as others hold too much. `num_scratch`: rows beside the text, which are
        few and not counted."""
        if self.num_reserved + num_positions > self.max_positions:
            return None
        self.num_reserved += num_positions
        return self._model.new_cache(num_positions + num_scratch)

    def give_back(self, num_positions: int) -> None:
        """The caller has dropped a cache of that size."""
        self.num_reserved -= num_positions
        assert self.num_reserved >= 0, self.num_reserved
