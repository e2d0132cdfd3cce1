"""Attention over the rows of many sequences, behind one shape: made once per step, called once per layer."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.engine.kv_cache import SequenceCache


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one sequence in a batch: they follow the `cache.length` positions that are already cached."""

    cache: SequenceCache
    token_ids: tuple[int, ...]
    num_logits: int
    """How many of the last rows need logits: all of a verify step, the last of a prompt, else none."""
