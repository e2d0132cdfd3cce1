"""Attention from FlashInfer's tensors, over an emulation of the library, against dense attention and sdpa."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_emulation import EmulatedLibrary, Planned, shape
from outrider.engine.attention import Segment
from outrider.engine.attention.flashinfer import FlashInferAttention, FlashInferKernels, load_flashinfer
from outrider.engine.attention.flashinfer_layout import PagedRows, append_slots, flatten_masks, page_table
from outrider.engine.attention.rotary import rotation_table
from outrider.engine.attention.sdpa import SdpaAttention
from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.placement import Placement
from outrider.errors import SetupError

ROOT = Path(__file__).parents[2]
PAGE_SIZES = st.sampled_from([1, 8, 16])
NUM_PAGES = 200
HALF = Placement(torch.device("cpu"), torch.float16)


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    """Thousands of tiny operations: on a busy machine, waiting for a second thread costs more than they do."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


# Random batches, and dense attention that knows neither pages nor masks.


@st.composite
def parents_of(draw: st.DrawFn, num_nodes: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(-1, i - 1)) for i in range(num_nodes))


@st.composite
def batches(draw: st.DrawFn, page_size: int, is_tree: bool | None = None) -> list[PagedRows]:
    """Sequences over shuffled pages, some with pages to spare: chains, trees, and committed rows before a tree."""
    batch = []
    free = random.Random(draw(st.integers(0, 2**16))).sample(range(NUM_PAGES), NUM_PAGES)
    for _ in range(draw(st.integers(1, 4))):
        start, count = draw(st.integers(0, 35)), draw(st.integers(1, 10))
        parents = None
        if is_tree or (is_tree is None and draw(st.booleans())):
            parents = draw(parents_of(draw(st.integers(0 if start else 1, count))))
        needed = -(-(start + count) // page_size) + draw(st.integers(0, 2))
        pages = tuple(free.pop() for _ in range(needed))
        batch.append(PagedRows(pages, start, count, parents))
    return batch


def seen_by(rows: PagedRows, row: int) -> list[int]:
    """Positions that a row attends to, by walking up from it."""
    parents = rows.parents or ()
    first = rows.count - len(parents)
    node, seen = row - first, [] if row >= first else list(range(rows.start + row + 1))
    if row >= first:
        seen = list(range(rows.start + first))
        while node >= 0:
            seen.append(rows.start + first + node)
            node = parents[node]
    return sorted(seen)


def dense(rows: PagedRows, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """q [count, heads, d], keys and values [length, kv_heads, d], row by row and head by head."""
    out, group = torch.empty_like(q), q.shape[1] // keys.shape[1]
    for row in range(rows.count):
        seen = seen_by(rows, row)
        for head in range(q.shape[1]):
            weights = (keys[seen, head // group] @ q[row, head] / q.shape[-1] ** 0.5).softmax(0)
            out[row, head] = weights @ values[seen, head // group]
    return out


def write_prefix(pages: torch.Tensor, rows: PagedRows, entries: torch.Tensor) -> None:
    """Put cached positions where the page list says; everything else stays poisoned."""
    for position in range(rows.start):
        pages[rows.pages[position // pages.shape[1]], position % pages.shape[1]] = entries[position]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_attention_from_the_tensors_equals_dense_attention(data: st.DataObject) -> None:
    """Paged gather, appended rows, packed masks and grouped heads give every row what dense attention gives it."""
    page_size, group, kv_heads = data.draw(PAGE_SIZES), data.draw(st.sampled_from([1, 2, 3, 4])), 2
    batch, head_dim = data.draw(batches(page_size)), 8
    torch.manual_seed(data.draw(st.integers(0, 2**16)))
    full = [torch.randn(2, rows.length, kv_heads, head_dim).double() for rows in batch]
    queries = [torch.randn(rows.count, kv_heads * group, head_dim).double() for rows in batch]
    pages = tuple(torch.full((NUM_PAGES, page_size, kv_heads, head_dim), float("nan")).double() for _ in range(2))
    for rows, entries in zip(batch, full, strict=True):
        write_prefix(pages[0], rows, entries[0])
        write_prefix(pages[1], rows, entries[1])

    table = page_table(batch, page_size)
    new = [torch.cat([entries[i, rows.start :] for rows, entries in zip(batch, full, strict=True)]) for i in (0, 1)]
    EmulatedLibrary.append_paged_kv_cache(
        *new, *append_slots(batch), pages, table.kv_indices, table.kv_indptr, table.last_page_len, "NHD"
    )
    flat, _ = flatten_masks(batch)
    tables = (table.qo_indptr, table.kv_indptr, table.kv_indices, table.last_page_len)
    planned = Planned(*tables, kv_heads * group, kv_heads, page_size, custom_mask=flat)
    found = planned.run(torch.cat(queries), pages)
    expected = [dense(rows, q, *entries) for rows, q, entries in zip(batch, queries, full, strict=True)]
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-12)


# The class that plans and runs, over the emulated library, against attention by sdpa.


def random_qkv(config: ModelConfig, num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim).half()


def paged_steps(
    config: ModelConfig, batch: list[PagedRows], page_size: int, prefix: torch.Tensor, new: torch.Tensor
) -> Iterator[torch.Tensor]:
    """Cache the prefixes in one step, then run the batch's rows; outputs of the second step by layer."""
    kernels = FlashInferKernels(EmulatedLibrary(), config, HALF)
    shape = (NUM_PAGES, page_size, config.num_kv_heads, config.head_dim)
    pages = [(torch.empty(shape).half(), torch.empty(shape).half()) for _ in range(config.num_layers)]
    table = rotation_table(config)
    before = [PagedRows(rows.pages, 0, rows.start) for rows in batch if rows.start]
    for layer in range(config.num_layers):
        if before:
            FlashInferAttention(kernels, before, table, pages)(layer, prefix)
    attend = FlashInferAttention(kernels, batch, table, pages)
    for layer in range(config.num_layers):
        yield attend(layer, new)


def sdpa_steps(config: ModelConfig, prefix: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The same two steps of one chain by sdpa in float32; outputs of the second step."""
    cache, turns = SequenceCache(config, 64), rotation_table(config)
    for qkv in (prefix, new) if len(prefix) else (new,):
        segment = Segment(cache, (0,) * len(qkv), 0)
        out = SdpaAttention(config, [segment], turns)(0, qkv.float())
        cache.extend(len(qkv))
    return out


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_chains_equal_sdpa(data: st.DataObject) -> None:
    """A ragged batch of prompts, verify steps and single rows gives each sequence what sdpa gives it alone."""
    page_size, kv_heads = data.draw(PAGE_SIZES), data.draw(st.sampled_from([1, 2]))
    config = shape(kv_heads * data.draw(st.sampled_from([1, 2, 3, 4])), kv_heads, 64)
    batch = data.draw(batches(page_size, is_tree=False))
    torch.manual_seed(data.draw(st.integers(0, 2**16)))
    prefix = random_qkv(config, sum(rows.start for rows in batch))
    new = random_qkv(config, sum(rows.count for rows in batch))
    prefixes, news = prefix.split([r.start for r in batch]), new.split([r.count for r in batch])
    expected = torch.cat([sdpa_steps(config, p, n) for p, n in zip(prefixes, news, strict=True)])
    for found in paged_steps(config, batch, page_size, prefix, new):
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=6e-3)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_a_node_sees_what_its_path_alone_would_see(data: st.DataObject) -> None:
    """Each row of a tree, rotary position included, equals the end of a chain of the rows on its path."""
    page_size, config = data.draw(PAGE_SIZES), shape(3, 1, 64)
    batch = data.draw(batches(page_size, is_tree=True))
    torch.manual_seed(data.draw(st.integers(0, 2**16)))
    prefix = random_qkv(config, sum(rows.start for rows in batch))
    new = random_qkv(config, sum(rows.count for rows in batch))
    found = list(paged_steps(config, batch, page_size, prefix, new))[-1].split([r.count for r in batch])
    prefixes, news = prefix.split([r.start for r in batch]), new.split([r.count for r in batch])
    for rows, out, before, qkv in zip(batch, found, prefixes, news, strict=True):
        for row in range(rows.count):
            path = [p - rows.start for p in seen_by(rows, row) if p >= rows.start]
            expected = sdpa_steps(config, before, qkv[path])[-1]
            torch.testing.assert_close(out[row].float(), expected, rtol=0, atol=6e-3)


# Without a GPU both the loader and the device check must say so.

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@no_gpu
def test_without_a_gpu_the_loader_names_it() -> None:
    """The operator reads what is missing and what to choose instead."""
    with pytest.raises(SetupError, match=r"CUDA GPU.*sdpa"):
        load_flashinfer()


@no_gpu
def test_the_device_check_runs_up_to_the_gpu() -> None:
    """Imports and arguments of the device check work; without a GPU it says so and exits with 2."""
    command = ["bash", str(ROOT / "tests" / "gpu" / "attention.sh"), "--page-sizes", "1", "16"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("attention_check: ") and "CUDA GPU" in done.stderr
    assert "Traceback" not in done.stderr
