"""Index tensors, masks and kernels, against the examples of FlashInfer's documentation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_emulation import shape
from outrider.engine.attention.flashinfer_layout import (
    Kernel,
    PagedRows,
    append_slots,
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
from outrider.errors import SetupError


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
