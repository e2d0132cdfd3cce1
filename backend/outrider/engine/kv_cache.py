"""Key/value memory in blocks, and the view that one sequence has of its blocks."""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Sequence as Seq

import torch

from outrider.engine.checkpoint import ModelConfig
from outrider.engine.placement import CPU, Placement

#: Positions per block: what is reused, taken and given back at once.
BLOCK_SIZE = 16
#: Keys and values of a layer, [blocks, BLOCK_SIZE, kv_heads, head_dim] each.
Pages = tuple[torch.Tensor, torch.Tensor]


def blocks_for(num_positions: int) -> int:
    """Blocks that hold so many positions."""
    return -(-num_positions // BLOCK_SIZE)


class KeyValueMemory:
    """Keys and values of all layers. A slot is a place for one position: block b has slots from b * BLOCK_SIZE on.

    Blocks lie as FlashInfer's pages do, so that every kind of attention reads one memory, and what moves and keeps
    positions knows only slots.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, placement: Placement = CPU) -> None:
        self.num_slots = num_blocks * BLOCK_SIZE
        shape = (config.num_layers, 2, self.num_slots, config.num_kv_heads, config.head_dim)
        self.data = _zeros(shape, placement)
        """[layers, 2, slots, kv_heads, head_dim], keys before values. Always finite: what is masked may be read."""
        self.layers = self.data.unbind(0)
        paged = self.data.view(shape[0], 2, num_blocks, BLOCK_SIZE, *shape[3:])
        self.pages: list[Pages] = [(keys, values) for keys, values in paged]
        """Of each layer; a block is a page."""

    def write(self, layer: int, slots: torch.Tensor, entries: torch.Tensor) -> None:
        """slots [R] int64, entries [2, R, kv_heads, head_dim]: keys and values of R positions."""
        self.layers[layer].index_copy_(1, slots, entries)

    @torch.inference_mode()
    def move(self, sources: Seq[int], targets: Seq[int]) -> None:
        """Copy slots to others, in all layers at once: a source may be a target too."""
        source, target = (torch.tensor(slots, device=self.data.device) for slots in (sources, targets))
        for layer in self.layers:
            layer.index_copy_(1, target, layer.index_select(1, source))


def _zeros(shape: tuple[int, ...], placement: Placement) -> torch.Tensor:
    if not placement.is_cpu or 0 in shape:
        return torch.zeros(shape, dtype=placement.dtype, device=placement.device)
    # Pages that the system gives are zero and take no memory before they are written; `torch.zeros` writes them.
    pages = mmap.mmap(-1, math.prod(shape) * placement.dtype.itemsize)
    return torch.frombuffer(pages, dtype=placement.dtype).view(shape)


class SequenceCache:
    """Keys and values of one sequence. `length` positions are valid; the rest of its blocks is room for later ones.

    As long as its blocks follow one another, as nearly always, reading is a view. Blocks that do not are gathered.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        memory: KeyValueMemory | None = None,
        placement: Placement = CPU,
    ) -> None:
        """Memory of its own for `capacity` positions; or, in a pool's memory, the blocks that `place` gives it."""
        self.memory = memory or KeyValueMemory(config, blocks_for(capacity), placement)
        self.blocks: list[int] = []
        self.is_run = True
        """Whether the blocks follow one another."""
        self.length = 0
        self.place([] if memory else list(range(blocks_for(capacity))))

    @property
    def capacity(self) -> int:
        """Positions that its blocks hold."""
        return len(self.blocks) * BLOCK_SIZE

    def place(self, blocks: list[int]) -> None:
        """Use these blocks from now on; positions that are valid must be in them."""
        self.blocks = blocks
        self.is_run = not blocks or blocks == list(range(blocks[0], blocks[0] + len(blocks)))

    def slots(self, start: int, end: int) -> Seq[int]:
        """Of the positions from `start` to before `end`; AssertionError when there is no room for them."""
        assert 0 <= start <= end <= self.capacity, (start, end, self.capacity)
        if self.is_run:
            first = self.blocks[0] * BLOCK_SIZE if self.blocks else 0
            return range(first + start, first + end)
        return [self.blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(start, end)]

    def read(self, layer: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [end, kv_heads, head_dim] of the first `end` positions."""
        slots = self.slots(0, end)
        data = self.memory.layers[layer]
        keys, values = data[:, slots.start : slots.stop] if isinstance(slots, range) else data[:, slots]
        return keys, values

    def extend(self, num_rows: int) -> None:
        """Declare that the next `num_rows` positions have been written in every layer."""
        assert self.length + num_rows <= self.capacity, (self.length, num_rows, self.capacity)
        self.length += num_rows

    def truncate(self, length: int) -> None:
        """Forget positions from `length` on: they belong to rejected draft tokens."""
        assert 0 <= length <= self.length, (length, self.length)
        self.length = length

    def keep(self, num_drafts: int, path: Seq[int]) -> None:
        """Of the last `num_drafts` rows keep those in `path`, moved up to follow one another; forget the others.

        A path goes from parents to children, so its indices ascend. Node depth equals the place after the move, so
        the keys' rotation is already right.
        """
        base = self.length - num_drafts
        assert all(a < b for a, b in itertools.pairwise(path)), path
        assert base >= 0 and (not path or (path[0] >= 0 and path[-1] < num_drafts)), (path, num_drafts, self.length)
        if path and path[-1] >= len(path):
            slots = self.slots(base, self.length)
            self.memory.move([slots[node] for node in path], slots[: len(path)])
        self.truncate(base + len(path))
