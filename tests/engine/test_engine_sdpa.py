"""Attention of tree rows and of scattered blocks, through the whole forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outrider.engine.attention import Segment
from outrider.engine.attention.sdpa import _groups, _places
from outrider.engine.cache_pool import CachePool
from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import BLOCK_SIZE, KeyValueMemory, SequenceCache
from outrider.engine.model import LlamaModel

PREFIX = (5, 9, 2, 44)
ROOT = 31
#: A tree with two children of the root, of which the second has the longer branch.
NODES = (7, 8, 11, 12, 13)
PARENTS = (-1, -1, 0, 1, 3)


@pytest.fixture(scope="module")
def model(attentive_folder: Path) -> LlamaModel:
    return LlamaModel(attentive_folder)


def chain_logits(model: LlamaModel, token_ids: tuple[int, ...]) -> torch.Tensor:
    return model.forward([Segment(SequenceCache(model.config, 64), token_ids, len(token_ids))])


def path_to(node: int) -> list[int]:
    return [*path_to(PARENTS[node]), node] if node >= 0 else []


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


def tree_step(model: LlamaModel, cache: SequenceCache) -> torch.Tensor:
    model.forward([Segment(cache, PREFIX, 0)])
    return model.forward([Segment(cache, (ROOT, *NODES), len(NODES) + 1, PARENTS)])


def test_a_tree_row_sees_the_prefix_and_its_ancestors(model: LlamaModel) -> None:
    """The logits of each node are those after its path alone, at the positions of its depth."""
    found = tree_step(model, SequenceCache(model.config, 32))
    close(found[0], chain_logits(model, (*PREFIX, ROOT))[-1])
    for node in range(len(NODES)):
        path = tuple(NODES[i] for i in path_to(node))
        close(found[node + 1], chain_logits(model, (*PREFIX, ROOT, *path))[-1])


@pytest.mark.parametrize("node", range(-1, len(NODES)))
def test_after_verification_only_the_path_stays(model: LlamaModel, node: int) -> None:
    """Whatever path was accepted, the text goes on as if its tokens alone had been written."""
    cache = SequenceCache(model.config, 32)
    tree_step(model, cache)
    path = path_to(node)
    cache.keep(len(NODES), path)
    accepted = (*PREFIX, ROOT, *(NODES[i] for i in path))
    assert cache.length == len(accepted)
    close(model.forward([Segment(cache, (3, 4), 2)]), chain_logits(model, (*accepted, 3, 4))[-2:])


def test_a_tree_that_is_a_chain_is_a_chain(model: LlamaModel) -> None:
    """Both ways of saying it give the same rows."""
    rows = (ROOT, *NODES)
    a, b = SequenceCache(model.config, 32), SequenceCache(model.config, 32)
    found = model.forward([Segment(a, rows, 6, (-1, 0, 1, 2, 3)), Segment(b, rows, 6)])
    close(found[:6], found[6:])


def test_scattered_blocks_compute_the_same(model: LlamaModel) -> None:
    """Where a sequence's blocks lie does not change its logits, nor what is kept of a tree."""
    pool = CachePool(model.config, 6 * BLOCK_SIZE)
    caches = [pool.allocate([i]) for i in range(6)]
    for i in (1, 3, 5):
        cache = caches[i]
        assert cache is not None
        pool.free(cache)
    long = tuple(range(1, 41))
    cache = pool.allocate(long)
    assert cache is not None and not cache.is_run
    model.forward([Segment(cache, long[:25], 0)])
    model.forward([Segment(cache, (*long[25:30], ROOT), 0)])
    cache.truncate(30)
    close(
        model.forward([Segment(cache, (ROOT, *NODES), 6, PARENTS)])[-1],
        chain_logits(model, (*long[:30], ROOT, 8, 12, 13))[-1],
    )
    cache.keep(len(NODES), path_to(4))
    close(
        model.forward([Segment(cache, (3, 4), 2)]),
        chain_logits(model, (*long[:30], ROOT, 8, 12, 13, 3, 4))[-2:],
    )


def lone_logits(model: LlamaModel, texts: list[tuple[int, ...]]) -> torch.Tensor:
    return torch.stack([chain_logits(model, text)[-1] for text in texts])


@pytest.mark.parametrize("lengths", [(20, 20, 20, 20), (20, 33, 18, 40, 61, 20), (3, 60, 4), (17,)])
def test_sequences_computed_together_are_those_computed_alone(model: LlamaModel, lengths: tuple[int, ...]) -> None:
    """Decode rows and trees of many lengths in one batch, and what is kept of the trees: each as if it were alone."""
    pool = CachePool(model.config, 40 * BLOCK_SIZE)
    texts = [tuple((7 * i + 3 * j) % 60 for j in range(n)) for i, n in enumerate(lengths)]
    caches = []
    for text in texts:
        cache = pool.allocate(text)
        assert cache is not None and pool.grow(cache, len(text) + len(NODES) + 1)
        caches.append(cache)
    model.forward([Segment(c, text[:-1], 0) for c, text in zip(caches, texts, strict=True)])
    found = model.forward([Segment(c, text[-1:], 1) for c, text in zip(caches, texts, strict=True)])
    close(found, lone_logits(model, texts))
    trees = model.forward([Segment(c, (ROOT, *NODES), len(NODES) + 1, PARENTS) for c in caches])
    path = path_to(4)
    texts = [(*text, ROOT, *(NODES[i] for i in path)) for text in texts]
    close(trees.view(len(texts), len(NODES) + 1, -1)[:, 5], lone_logits(model, texts))
    for cache in caches:
        cache.keep(len(NODES), path)
    texts = [(*text, 9) for text in texts]
    close(model.forward([Segment(cache, (9,), 1) for cache in caches]), lone_logits(model, texts))


def groups_of(config: ModelConfig, starts: list[int], lengths: list[int]) -> list[list[int]]:
    """Which sequences share a call, given their first blocks and lengths, in memory of 16 blocks."""
    memory = KeyValueMemory(config, 16)
    segments = []
    for start, length in zip(starts, lengths, strict=True):
        cache = SequenceCache(config, 0, memory)
        cache.place(list(range(start, 16)))
        cache.length = length - 1
        segments.append(Segment(cache, (1,), 1))
    return [[place.first_row for place in group] for group in _groups(list(_places(segments)))]


def test_which_sequences_share_a_call(model: LlamaModel) -> None:
    """Equal steps in memory and similar lengths; never beyond the end of memory, nor one that has blocks apart."""
    assert groups_of(model.config, [0, 3, 6, 9], [40] * 4) == [[0, 1, 2, 3]]
    assert groups_of(model.config, [9, 3, 0, 6], [40] * 4) == [[2, 1, 3, 0]]
    assert groups_of(model.config, [0, 3, 7, 9], [40] * 4) == [[0, 1], [2, 3]]
    assert groups_of(model.config, [0, 3], [10, 30]) == [[0], [1]]
    assert groups_of(model.config, [0, 13], [60, 40]) == [[0], [1]]
    scattered = SequenceCache(model.config, 0, KeyValueMemory(model.config, 4))
    scattered.place([2, 0])
    assert len(_groups(list(_places([Segment(scattered, (1,), 1), Segment(scattered, (2,), 1)])))) == 2
