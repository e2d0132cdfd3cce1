"""FlashInfer's tensors against its documentation, and attention computed from them against dense attention."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.attention import Segment
from outrider.engine.attention.flashinfer import FlashInferAttention, FlashInferCache, load_flashinfer
from outrider.engine.attention.flashinfer_layout import (
    Kernel,
    PagedRows,
    append_slots,
    flatten_masks,
    group_by_kernel,
    kernel_for,
    pack_masks,
    page_table,
    refuse_unsupported,
    rotary_positions,
    unpack_masks,
    uses_tensor_cores,
    visible,
)
from outrider.engine.attention.sdpa import SdpaAttention
from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import SequenceCache
from outrider.errors import SetupError

ROOT = Path(__file__).parents[2]
PAGE_SIZES = st.sampled_from([1, 8, 16])
NUM_PAGES = 200


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    """Thousands of tiny operations: on a busy machine, waiting for a second thread costs more than they do."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def shape(num_heads: int, num_kv_heads: int, head_dim: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=1, hidden_size=1, intermediate_size=1, num_layers=2, num_heads=num_heads,
        num_kv_heads=num_kv_heads, head_dim=head_dim, rms_norm_eps=1e-5, rope_theta=1e4, context_length=128,
        has_tied_embeddings=False, eos_token_ids=(),
    )  # fmt: skip


# An emulation of the documented library: it sees nothing but the tensors that the real one would get.


@dataclass
class Planned:
    """One planned batch; `run` reads pages by index and masks by bit, as the kernels do."""

    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    last_page_len: torch.Tensor
    num_qo_heads: int
    num_kv_heads: int
    page_size: int
    is_causal: bool = False
    custom_mask: torch.Tensor | None = None

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        out = torch.empty_like(q)
        for b in range(len(self.last_page_len)):
            rows = slice(int(self.qo_indptr[b]), int(self.qo_indptr[b + 1]))
            length = self.lengths()[b]
            pages = self.kv_indices[self.kv_indptr[b] : self.kv_indptr[b + 1]].long()
            keys, values = (cache[pages].flatten(0, 1)[:length].double() for cache in paged_kv_cache)
            group = self.num_qo_heads // self.num_kv_heads
            keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
            scores = torch.einsum("rhd,nhd->hrn", q[rows].double(), keys) / q.shape[-1] ** 0.5
            scores = scores.masked_fill(~self.mask(b, rows.stop - rows.start, length), float("-inf"))
            out[rows] = torch.einsum("hrn,nhd->rhd", scores.softmax(-1), values).to(q.dtype)
        return out

    def lengths(self) -> list[int]:
        num_pages = self.kv_indptr.diff()
        return ((num_pages - 1) * self.page_size + self.last_page_len).tolist()

    def mask(self, b: int, num_rows: int, length: int) -> torch.Tensor:
        row, position = torch.arange(num_rows).unsqueeze(1), torch.arange(length)
        if self.custom_mask is not None:
            sizes = self.qo_indptr.diff() * torch.tensor(self.lengths())
            assert len(self.custom_mask) == int(sizes.sum())
            indptr = torch.cat([torch.zeros(1), sizes.cumsum(0)]).int()
            packed, byte_indptr = pack_masks(self.custom_mask, indptr)
            offset = row * length + position
            return (packed[byte_indptr[b] + offset // 8] >> (offset % 8)) & 1 == 1
        return position + num_rows <= length + row if self.is_causal else torch.ones(num_rows, length).bool()


class EmulatedPrefill:
    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str, *, backend: str) -> None:
        assert (float_workspace_buffer.dtype, kv_layout, backend) == (torch.uint8, "NHD", "fa2")

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, *, causal=False, custom_mask=None, q_data_type, kv_data_type,
    ) -> None:  # fmt: skip
        tables = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert q_data_type == kv_data_type and all(t.dtype == torch.int32 for t in tables)
        self.run = Planned(*tables, num_qo_heads, num_kv_heads, page_size, causal, custom_mask).run


class EmulatedDecode:
    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str, *, use_tensor_cores: bool) -> None:
        assert (float_workspace_buffer.dtype, kv_layout) == (torch.uint8, "NHD")
        self.use_tensor_cores = use_tensor_cores

    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *, q_data_type,
        kv_data_type,
    ) -> None:  # fmt: skip
        assert self.use_tensor_cores or num_qo_heads // num_kv_heads in (1, 2, 3, 4, 8)
        rows = torch.arange(len(last_page_len) + 1)
        self.run = Planned(rows, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, page_size).run


class EmulatedLibrary:
    BatchPrefillWithPagedKVCacheWrapper = EmulatedPrefill
    BatchDecodeWithPagedKVCacheWrapper = EmulatedDecode

    @staticmethod
    def append_paged_kv_cache(
        append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr, kv_last_page_len,
        kv_layout,
    ) -> None:  # fmt: skip
        page_size = paged_kv_cache[0].shape[1]
        for row, (b, position) in enumerate(zip(batch_indices.tolist(), positions.tolist(), strict=True)):
            page = kv_indices[kv_indptr[b] + position // page_size]
            for cache, new in zip(paged_kv_cache, (append_key, append_value), strict=True):
                cache[page, position % page_size] = new[row]


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


def rotations(config: ModelConfig) -> torch.Tensor:
    exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
    angles = torch.outer(torch.arange(config.context_length), config.rope_theta**-exponents)
    return torch.polar(torch.ones_like(angles), angles)


def random_qkv(config: ModelConfig, num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim).half()


def paged_steps(
    config: ModelConfig, batch: list[PagedRows], page_size: int, prefix: torch.Tensor, new: torch.Tensor
) -> Iterator[torch.Tensor]:
    """Cache the prefixes in one step, then run the batch's rows; outputs of the second step by layer."""
    cache = FlashInferCache(EmulatedLibrary(), config, NUM_PAGES, page_size, torch.empty(0, dtype=torch.float16))
    before = [PagedRows(rows.pages, 0, rows.start) for rows in batch if rows.start]
    for layer in range(config.num_layers):
        if before:
            FlashInferAttention(config, before, rotations(config), cache)(layer, prefix)
    attend = FlashInferAttention(config, batch, rotations(config), cache)
    for layer in range(config.num_layers):
        yield attend(layer, new)


def sdpa_steps(config: ModelConfig, prefix: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The same two steps of one chain by sdpa in float32; outputs of the second step."""
    cache, turns = SequenceCache(config, 64), rotations(config)
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


# The tensors themselves, against FlashInfer's documentation.


def test_the_page_table_is_the_documented_one() -> None:
    """The example of flashinfer's `append_paged_kv_cache`: sequences of 45, 8, 25 and 22 in pages of 16."""
    pages = [(0, 1, 2), (3,), (4, 5), (6, 7, 99)]
    batch = [PagedRows(p, 0, n) for p, n in zip(pages, (45, 8, 25, 22), strict=True)]
    table = page_table(batch, page_size=16)
    assert table.qo_indptr.tolist() == [0, 45, 53, 78, 100]
    assert table.kv_indptr.tolist() == [0, 3, 4, 6, 8]
    assert table.kv_indices.tolist() == list(range(8))
    assert table.last_page_len.tolist() == [13, 8, 9, 6]
    assert {t.dtype for t in (table.qo_indptr, table.kv_indptr, table.kv_indices, table.last_page_len)} == {
        torch.int32
    }


def test_a_full_last_page_is_not_empty() -> None:
    """`last_page_len` is between one and the page size, never zero."""
    table = page_table([PagedRows((5, 6, 7), 15, 1), PagedRows((8, 9), 16, 1)], page_size=16)
    assert table.last_page_len.tolist() == [16, 1]
    assert table.kv_indices.tolist() == [5, 8, 9]


def test_the_slots_are_the_documented_ones() -> None:
    """The example of flashinfer's `get_batch_indices_positions`: 1, 2, 3 and 4 rows that end at position 5."""
    batch_indices, positions = append_slots([PagedRows((0,), 5 - n, n) for n in (1, 2, 3, 4)])
    assert batch_indices.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert positions.tolist() == [4, 3, 4, 2, 3, 4, 1, 2, 3, 4]
    assert batch_indices.dtype == positions.dtype == torch.int32


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=40), min_size=1, max_size=5))
def test_masks_are_packed_as_documented(segments: list[list[bool]]) -> None:
    """Each sequence's bits are numpy's little-endian `packbits` of them alone, and unpack to what they were."""
    flat = torch.tensor([bit for segment in segments for bit in segment])
    indptr = torch.tensor(np.cumsum([0, *map(len, segments)]), dtype=torch.int32)
    packed, byte_indptr = pack_masks(flat, indptr)
    expected = [np.packbits(segment, bitorder="little") for segment in segments]
    assert packed.tolist() == np.concatenate(expected).tolist()
    assert byte_indptr.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert (packed.dtype, byte_indptr.dtype) == (torch.uint8, torch.int32)
    assert torch.equal(unpack_masks(packed, byte_indptr, indptr), flat)


def test_segments_are_padded_one_by_one() -> None:
    """The segments of flashinfer's `segment_packbits` example, here with the first entry in the lowest bit."""
    flat = torch.tensor([1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1]).bool()
    packed, byte_indptr = pack_masks(flat, torch.tensor([0, 4, 7, 11], dtype=torch.int32))
    assert packed.tolist() == [0b1101, 0b100, 0b1011]
    assert byte_indptr.tolist() == [0, 1, 2, 3]


def test_a_tree_s_mask_and_positions() -> None:
    """Two committed rows after a prefix of two, then two children of the prefix and a grandchild."""
    rows = PagedRows((0,), 2, 5, parents=(-1, -1, 0))
    assert visible(rows).int().tolist() == [
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 1, 0],
        [1, 1, 1, 1, 1, 0, 1],
    ]
    assert rotary_positions([PagedRows((1,), 7, 2), rows]).tolist() == [7, 8, 2, 3, 4, 4, 5]


def test_a_chain_s_mask_is_the_documented_causal_one() -> None:
    """The custom mask of flashinfer's prefill example: lower triangle, aligned to the last position."""
    expected = torch.ones(4, 11).tril(diagonal=11 - 4).bool()
    assert torch.equal(visible(PagedRows((0,), 7, 4)), expected)
    assert torch.equal(visible(PagedRows((0,), 7, 4, parents=(-1, 0, 1))), expected)


def test_each_kernel_gets_its_rows() -> None:
    """Single rows decode, chains need no mask however they are written, and the groups cover all rows once."""
    batch = [
        PagedRows((0,), 3, 1),
        PagedRows((1,), 0, 4),
        PagedRows((2,), 3, 3, parents=(-1, -1)),
        PagedRows((3,), 3, 3, parents=(-1, 0)),
        PagedRows((4,), 5, 1, parents=(-1,)),
    ]
    expected = [Kernel.DECODE, Kernel.CAUSAL, Kernel.TREE, Kernel.CAUSAL, Kernel.DECODE]
    assert [kernel_for(rows) for rows in batch] == expected
    groups = {group.kernel: group.row_indices.tolist() for group in group_by_kernel(batch)}
    assert groups == {Kernel.DECODE: [0, 11], Kernel.CAUSAL: [1, 2, 3, 4, 8, 9, 10], Kernel.TREE: [5, 6, 7]}


@pytest.mark.parametrize("rows", [PagedRows((0, 1), 30, 3), PagedRows((0,), 0, 0), PagedRows((0,), 0, 1, (-1, 0))])
def test_rows_that_do_not_fit_are_a_fault(rows: PagedRows) -> None:
    """Too few pages, no rows, or more nodes than rows never reach a kernel."""
    with pytest.raises(AssertionError):
        page_table([rows], page_size=16)
        visible(rows)


def test_decode_uses_a_kernel_that_exists() -> None:
    """Group sizes that plain decode has no kernel for go to the folded one."""
    assert [g for g in range(1, 17) if not uses_tensor_cores(shape(g, 1, 64))] == [1, 2, 3]


@pytest.mark.parametrize(
    ("head_dim", "dtype", "named"), [(80, torch.float16, "head size 80"), (64, torch.float32, "float32")]
)
def test_what_has_no_kernel_is_refused(head_dim: int, dtype: torch.dtype, named: str) -> None:
    """A model that FlashInfer cannot run stops the start and says why."""
    with pytest.raises(SetupError, match=named):
        refuse_unsupported(shape(4, 2, head_dim), dtype)


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
