"""The memory of keys and values: it costs nothing before it is written, and moves positions in all layers."""

from __future__ import annotations

import resource

import torch

from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import BLOCK_SIZE, KeyValueMemory, SequenceCache

CONFIG = ModelConfig(
    vocab_size=8, hidden_size=2, intermediate_size=2, num_layers=2, num_heads=1, num_kv_heads=2, head_dim=2,
    rms_norm_eps=1e-5, rope_theta=1e4, context_length=4096, has_tied_embeddings=True, eos_token_ids=(),
)  # fmt: skip


def test_memory_that_is_not_written_is_zero_and_not_taken() -> None:
    """A gigabyte of blocks is there at once; a masked position that nobody wrote cannot spoil a sum."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = KeyValueMemory(CONFIG, 2**30 // (64 * BLOCK_SIZE))
    assert memory.data.nbytes == 2**30
    assert not memory.data[:, :, -1].any() and not memory.data[:, :, :100].any()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def test_a_move_reads_before_it_writes() -> None:
    """Slots that are source and target at once arrive as they were, in keys and values of every layer."""
    memory = KeyValueMemory(CONFIG, 1)
    memory.data.copy_(torch.arange(memory.data.numel()).view(memory.data.shape))
    expected = memory.data.clone()
    memory.move([1, 2, 5], range(3))
    expected[:, :, :3] = expected[:, :, [1, 2, 5]]
    assert torch.equal(memory.data, expected)


def test_pages_are_the_blocks() -> None:
    """What is written to a slot stands in its block's page, which is what FlashInfer reads."""
    memory = KeyValueMemory(CONFIG, 3)
    memory.write(1, torch.tensor([BLOCK_SIZE + 2]), torch.tensor([3.0, 4.0]).view(2, 1, 1, 1).expand(2, 1, 2, 2))
    keys, values = memory.pages[1]
    assert keys.shape == (3, BLOCK_SIZE, 2, 2)
    assert (keys[1, 2] == 3).all() and (values[1, 2] == 4).all() and keys.sum() == 12


def test_slots_follow_the_blocks() -> None:
    """In a run as a range, else one by one; and there are none beyond the room."""
    memory = KeyValueMemory(CONFIG, 4)
    cache = SequenceCache(CONFIG, 0, memory)
    cache.place([1, 2])
    assert cache.slots(15, 18) == range(31, 34)
    cache.place([3, 1])
    assert list(cache.slots(15, 18)) == [63, 16, 17]
