"""Attention of tree rows and of scattered blocks, through the whole forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outrider.engine.attention import Segment
from outrider.engine.cache_pool import CachePool
from outrider.engine.kv_cache import BLOCK_SIZE, SequenceCache
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
