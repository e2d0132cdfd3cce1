"""Key/value memory in blocks, and the view that one sequence has of its blocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq

import torch

from outrider.engine.checkpoint import ModelConfig

#: Positions per block: what is reused, taken and given back at once.
BLOCK_SIZE = 16


def blocks_for(num_positions: int) -> int:
    return -(-num_positions // BLOCK_SIZE)


class KeyValueMemory:
    """Per layer, keys and values [kv_heads, num_blocks * BLOCK_SIZE, head_dim] float32."""

    def __init__(self, config: ModelConfig, num_blocks: int) -> None:
        shape = (config.num_layers, config.num_kv_heads, num_blocks * BLOCK_SIZE, config.head_dim)
        # Memory is touched only when positions are written, so what is never used costs nothing.
        self.keys = list(torch.empty(shape))
        self.values = list(torch.empty(shape))


class SequenceCache:
    """Keys and values of one sequence. `length` positions are valid; the rest of its blocks is room for later ones.

    As long as its blocks follow one another, as nearly always, reading is a view. Blocks that do not are gathered.
    """

    def __init__(self, config: ModelConfig, capacity: int, memory: KeyValueMemory | None = None) -> None:
        """Memory of its own for `capacity` positions; or, in a pool's memory, the blocks that `place` gives it."""
        self._memory = memory or KeyValueMemory(config, blocks_for(capacity))
        self._slots: torch.Tensor | None = None
        """Slot of each position; None while blocks follow one another."""
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.blocks: list[int] = []
        self.length = 0
        self.place([] if memory else list(range(blocks_for(capacity))))

    @property
    def capacity(self) -> int:
        return len(self.blocks) * BLOCK_SIZE

    @property
    def is_run(self) -> bool:
        """Whether the blocks follow one another."""
        return self._slots is None

    def place(self, blocks: list[int]) -> None:
        """Use these blocks from now on; positions that are valid must be in them."""
        is_run = not blocks or blocks == list(range(blocks[0], blocks[0] + len(blocks)))
        old_start = self.blocks[:1] if self.is_run else []
        self.blocks = blocks
        if not is_run:
            starts = torch.tensor(blocks).unsqueeze(1) * BLOCK_SIZE
            self._slots = (starts + torch.arange(BLOCK_SIZE)).flatten()
            self.keys, self.values = self._memory.keys, self._memory.values
            return
        self._slots = None
        if blocks and blocks[:1] != old_start:
            # The views end where the memory ends, so that growth in place leaves them as they are.
            first = blocks[0] * BLOCK_SIZE
            self.keys = [keys[:, first:] for keys in self._memory.keys]
            self.values = [values[:, first:] for values in self._memory.values]

    def read(self, layer: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [kv_heads, end, head_dim] of the first `end` positions."""
        keys, values = self.keys[layer], self.values[layer]
        if self._slots is None:
            return keys[:, :end], values[:, :end]
        slots = self._slots[:end]
        return keys[:, slots], values[:, slots]

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write rows [kv_heads, r, head_dim] at the end; returns all, [kv_heads, length + r, head_dim].

        The rows become valid with `extend`, once every layer has them.
        """
        start, end = self.length, self.length + key.shape[1]
        if self._slots is not None:
            slots = self._slots[start:end]
            self.keys[layer][:, slots] = key
            self.values[layer][:, slots] = value
            return self.read(layer, end)
        keys, values = self.read(layer, end)
        keys[:, start:] = key
        values[:, start:] = value
        return keys, values

    def extend(self, num_rows: int) -> None:
        """Declare that the next `num_rows` positions have been written in every layer."""
        assert self.length + num_rows <= self.capacity, (self.length, num_rows, self.capacity)
        self.length += num_rows

    def truncate(self, length: int) -> None:
        """Forget positions from `length` on: they belong to rejected draft tokens."""
        assert 0 <= length <= self.length, (length, self.length)
        self.length = length

    @torch.inference_mode()
    def keep(self, num_drafts: int, path: Seq[int]) -> None:
        """Of the last `num_drafts` rows keep those in `path`, moved up to follow one another; forget the others.

        A path goes from parents to children, so its indices ascend. Node depth equals the place after the move, so
        the keys' rotation is already right.
        """
        base = self.length - num_drafts
        assert all(a < b for a, b in itertools.pairwise(path)), path
        assert base >= 0 and (not path or (path[0] >= 0 and path[-1] < num_drafts)), (path, num_drafts, self.length)
        if path and path[-1] >= len(path):
            sources = torch.tensor([base + node for node in path])
            targets = torch.arange(base, base + len(path))
            if self._slots is not None:
                sources, targets = self._slots[sources], self._slots[targets]
            for tensor in (*self.keys, *self.values):
                tensor[:, targets] = tensor[:, sources]
        self.truncate(base + len(path))
