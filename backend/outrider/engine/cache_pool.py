"""Who holds which block: references, reuse of earlier texts, eviction of the least recently used, and placement.

Attention reads a sequence fastest when its blocks follow one another. A sequence therefore starts in a window with
headroom behind it, a reused beginning is copied there when the place behind the original is taken, and a sequence
that has outgrown its place moves. Only when no window is left are blocks taken one by one and beginnings shared.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import BLOCK_SIZE, KeyValueMemory, SequenceCache, blocks_for
from outrider.engine.placement import CPU, Placement
from outrider.engine.prefix import PrefixIndex, next_digest, root_digest

#: Blocks kept free behind a sequence for what it may still write. Answers are mostly shorter than what was allowed.
MAX_HEADROOM = 32
#: Last use of a block that is in use.
_NOW = np.iinfo(np.int64).max


@dataclass(slots=True)
class _Holding:
    """What the pool knows about a sequence that holds blocks."""

    cache: SequenceCache
    root: bytes
    expected_blocks: int
    """Blocks that it would hold at its longest."""
    digests: list[bytes] = field(default_factory=list)
    """Of its blocks that are complete and committed."""
    headroom_end: int = 0
    """Blocks from its last one up to here are taken by others only in need."""


class CachePool:
    """All blocks of a model. A block is free (holds nothing), cached (nobody uses it) or used by sequences."""

    def __init__(self, config: ModelConfig, max_total_tokens: int, placement: Placement = CPU) -> None:
        self.num_blocks = max_total_tokens // BLOCK_SIZE
        self._config = config
        self._memory = KeyValueMemory(config, self.num_blocks, placement)
        self._index = PrefixIndex()
        self._holdings: dict[SequenceCache, _Holding] = {}
        self._references = np.zeros(self.num_blocks, dtype=np.int64)
        self._last_use = np.zeros(self.num_blocks, dtype=np.int64)
        """0 for free blocks, _NOW for used ones, and for cached ones a clock's value when they were given back."""
        self._clock = 0
        self._num_used = 0

    @property
    def num_positions(self) -> int:
        """Tokens that fit into all blocks."""
        return self.num_blocks * BLOCK_SIZE

    @property
    def num_available(self) -> int:
        """Blocks that nobody uses: free, or cached and evictable."""
        return self.num_blocks - self._num_used

    @property
    def num_used_tokens(self) -> int:
        """Positions in blocks that sequences use; what is only cached does not count."""
        return self._num_used * BLOCK_SIZE

    def allocate(
        self, token_ids: Seq[int], *, salt: str = "", num_expected: int = 0, num_spare: int = 0
    ) -> SequenceCache | None:
        """A cache with room for these tokens whose beginning, in whole blocks, is reused from earlier texts.

        At least one token is left to compute, since its logits are wanted. `num_expected`: positions it may grow to.
        None when `num_spare` blocks would not be left.
        """
        root = root_digest(salt)
        hits, digests = self._index.match(root, token_ids[:-1], BLOCK_SIZE)
        num_revived = int((self._references[hits] == 0).sum()) if hits else 0
        num_new = blocks_for(len(token_ids)) - len(hits)
        if num_new + num_revived + num_spare > self.num_available:
            return None
        cache = SequenceCache(self._config, 0, self._memory)
        self._references[hits] += 1
        self._num_used += num_revived
        cache.place(hits)
        cache.length = len(hits) * BLOCK_SIZE
        self._holdings[cache] = _Holding(cache, root, blocks_for(num_expected), digests)
        has_grown = self.grow(cache, len(token_ids), num_spare)
        assert has_grown, (len(token_ids), self.num_available)
        self._last_use[cache.blocks] = _NOW
        return cache

    def grow(self, cache: SequenceCache, num_positions: int, num_spare: int = 0) -> bool:
        """Make room for so many positions; False, and nothing happens, when too few blocks are available.

        Shared blocks are copied to a better place only where that leaves `num_spare` blocks.
        """
        num_new = blocks_for(num_positions) - len(cache.blocks)
        if num_new > self.num_available:
            return False
        if num_new > 0:
            self._extend(self._holdings[cache], num_new, num_spare)
        return True

    def largest(self, cache: SequenceCache) -> int:
        """Positions that `grow` could make room for now."""
        return cache.capacity + self.num_available * BLOCK_SIZE

    def remember(self, cache: SequenceCache, token_ids: Seq[int]) -> None:
        """Let others reuse the whole blocks of what is valid in the cache and known as `token_ids`."""
        holding = self._holdings[cache]
        digests = holding.digests
        num_complete = min(cache.length, len(token_ids)) // BLOCK_SIZE
        assert num_complete >= len(digests), (cache.length, len(token_ids), len(digests))
        for i in range(len(digests), num_complete):
            digest = next_digest(digests[-1] if digests else holding.root, token_ids[i * BLOCK_SIZE :][:BLOCK_SIZE])
            self._index.add(digest, cache.blocks[i])
            digests.append(digest)

    def free(self, cache: SequenceCache) -> None:
        """Give back all blocks; those remembered stay cached, the last ones of a text to be evicted first."""
        del self._holdings[cache]
        for block in reversed(cache.blocks):
            self._give_back(block)
        cache.place([])
        cache.length = 0

    def _extend(self, holding: _Holding, num_new: int, num_spare: int) -> None:
        """Behind its blocks if that is possible, else all in a new window, else anywhere."""
        cache = holding.cache
        num_blocks = len(cache.blocks) + num_new
        headroom = max(0, min(holding.expected_blocks - num_blocks, MAX_HEADROOM))
        num_shared = int((self._references[cache.blocks] > 1).sum())
        can_move = num_new + num_shared + num_spare <= self.num_available
        if self._fits_behind(cache, num_new):
            start = cache.blocks[-1] + 1
            new = list(range(start, start + num_new))
        elif can_move and (window := self._window(holding, num_blocks, headroom)) is not None:
            self._move(cache, window)
            new = list(range(window + len(cache.blocks), window + num_blocks))
        else:
            new = [int(block) for block in np.argsort(self._last_use_or(_NOW), kind="stable")[:num_new]]
        self._take(new)
        cache.place(cache.blocks + new)
        holding.headroom_end = cache.blocks[-1] + 1 + headroom if cache.is_run else 0

    def _fits_behind(self, cache: SequenceCache, num_new: int) -> bool:
        """Whether the next blocks are unused, and older than what they would be joined to."""
        if not cache.blocks or not cache.is_run:
            return False
        behind = slice(cache.blocks[-1] + 1, cache.blocks[-1] + 1 + num_new)
        is_inside = behind.stop <= self.num_blocks
        return is_inside and bool(
            (self._references[behind] == 0).all()
            and (self._last_use[behind] < self._last_use[cache.blocks[-1]]).all()
        )

    def _window(self, holding: _Holding, num_blocks: int, headroom: int) -> int | None:
        """First block of the unused window whose newest content is oldest, with headroom if there is any."""
        last_use = self._last_use_or(_NOW)
        outside = last_use.copy()
        for other in self._holdings.values():
            if other is not holding and other.cache.blocks:
                outside[other.cache.blocks[-1] + 1 : other.headroom_end] = _NOW
        for ages, size in ((outside, num_blocks + headroom), (outside, num_blocks), (last_use, num_blocks)):
            newest = _sliding_maximum(ages, size)
            if newest.size and newest.min() < _NOW:
                return int(newest.argmin())
        return None

    def _last_use_or(self, used: int) -> npt.NDArray[np.int64]:
        """Last use of every block, `used` for those in use."""
        return np.where(self._references > 0, used, self._last_use)

    def _move(self, cache: SequenceCache, start: int) -> None:
        """Copy a sequence's blocks to the unused ones from `start` on; what nobody else uses takes its name along."""
        old, new = cache.blocks, list(range(start, start + len(cache.blocks)))
        self._take(new)
        first = start * BLOCK_SIZE
        if cache.length:
            self._memory.move(cache.slots(0, cache.length), range(first, first + cache.length))
        for source, target in zip(old, new, strict=True):
            if self._references[source] == 1:
                self._index.move(source, target)
            self._give_back(source)
        cache.place(new)

    def _take(self, blocks: list[int]) -> None:
        assert not self._references[blocks].any(), (blocks, self._references[blocks])
        for block in blocks:
            self._index.forget(block)
        self._references[blocks] = 1
        self._last_use[blocks] = _NOW
        self._num_used += len(blocks)

    def _give_back(self, block: int) -> None:
        assert self._references[block] > 0, block
        self._references[block] -= 1
        if self._references[block] == 0:
            self._num_used -= 1
            self._clock += 1
            self._last_use[block] = self._clock if block in self._index else 0

    def check(self) -> None:
        """Assert that every block is in exactly one state and that references are those of the sequences."""
        counts = np.zeros_like(self._references)
        for cache, holding in self._holdings.items():
            assert len(set(cache.blocks)) == len(cache.blocks), cache.blocks
            assert len(holding.digests) * BLOCK_SIZE <= cache.length <= cache.capacity, (cache.length, cache.blocks)
            counts[cache.blocks] += 1
        assert (counts == self._references).all(), (counts, self._references)
        assert self._num_used == (counts > 0).sum(), (self._num_used, counts)
        is_named = np.array([block in self._index for block in range(self.num_blocks)])
        assert is_named.sum() == len(self._index)
        assert ((self._last_use == _NOW) == (counts > 0)).all(), self._last_use
        assert ((self._last_use > 0) == (is_named | (counts > 0))).all(), (self._last_use, is_named)
        written = [cache.blocks[cache.length // BLOCK_SIZE :] for cache in self._holdings]
        assert all(self._references[block] == 1 and block not in self._index for rest in written for block in rest)


def _sliding_maximum(values: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Maximum of each `size` neighbours; empty when there are fewer values. Doubles the width as it goes."""
    width = 1
    while width < size and values.size:
        step = min(width, size - width)
        values = np.maximum(values[:-step], values[step:])
        width += step
    return values
