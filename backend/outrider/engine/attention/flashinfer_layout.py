"""The index tensors and tree masks that FlashInfer reads, built from the rows of a ragged batch; CPU only.

Layouts as FlashInfer documents them (read in release 0.7.2):

- flashinfer `docs/tutorials/kv_layout.rst`: pages in NHD order are `[num_pages, page_size, num_kv_heads, head_dim]`;
  a batch's pages are one concatenated list cut by an indptr; a sequence holds `page_size * (its pages - 1) +
  last_page_len` positions, `1 <= last_page_len <= page_size`; every index tensor is int32; masks are a flat bool
  array, per sequence row-major `[rows, positions]`, packed eight to a byte with the first in the lowest bit.
- flashinfer `quantization.py`, `segment_packbits`: each sequence's mask starts at a byte of its own.
- flashinfer `include/flashinfer/attention/variants.cuh`: the kernel tests bit `offset % 8` of byte `offset / 8` from
  the sequence's first byte on, where `offset = row * positions + position`.
- flashinfer `page.py`, `append_paged_kv_cache`: the indices already count the appended rows; each row names its
  sequence and its position there.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum

import torch

from outrider.engine.checkpoint import ModelConfig
from outrider.errors import SetupError

#: Head sizes and types that FlashInfer's fa2 kernels are built for.
HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class PagedRows:
    """New rows of one sequence over a paged cache: `count` rows after the `start` positions already cached.

    The last `len(parents)` rows are the nodes of a tree: node i's parent is node `parents[i] < i`, and -1 stands for
    the committed prefix, which is everything before the first node. The rows before the nodes, and all rows when
    `parents` is None, are a chain.
    """

    pages: tuple[int, ...]
    """Page ids in the order of positions, with room for the new rows; more pages than needed are allowed."""
    start: int
    count: int
    parents: tuple[int, ...] | None = None

    @property
    def length(self) -> int:
        """Positions after this step."""
        return self.start + self.count

    @property
    def is_chain(self) -> bool:
        """Whether causal attention is all it takes: every node hangs on the one before it."""
        return self.parents is None or all(parent == i - 1 for i, parent in enumerate(self.parents))


class Kernel(Enum):
    """Which FlashInfer wrapper runs a sequence's rows."""

    DECODE = "decode"
    """One row, which sees every position."""
    CAUSAL = "causal"
    """A chain: the prefill wrapper with `causal=True`, aligned to the last position."""
    TREE = "tree"
    """The prefill wrapper with a custom mask."""


@dataclass(frozen=True, slots=True)
class PageTable:
    """Which query rows and which pages belong to which of B sequences. All int32."""

    qo_indptr: torch.Tensor
    """[B + 1]: rows of sequence b are `qo_indptr[b]:qo_indptr[b + 1]`."""
    kv_indptr: torch.Tensor
    """[B + 1]: its pages are `kv_indices[kv_indptr[b]:kv_indptr[b + 1]]`."""
    kv_indices: torch.Tensor
    last_page_len: torch.Tensor
    """[B]"""

    def to(self, device: torch.device) -> PageTable:
        """The same on another device."""
        return PageTable(
            *(t.to(device) for t in (self.qo_indptr, self.kv_indptr, self.kv_indices, self.last_page_len))
        )


@dataclass(frozen=True, slots=True)
class Group:
    """The sequences of a batch that one kernel serves."""

    kernel: Kernel
    rows: tuple[PagedRows, ...]
    row_indices: torch.Tensor
    """[rows of the group] int64: where its query rows stand in the batch."""


def page_table(batch: Seq[PagedRows], page_size: int) -> PageTable:
    """The batch's index tensors, in the batch's order."""
    indices: list[int] = []
    num_pages, last_lengths = [], []
    for rows in batch:
        assert rows.start >= 0 and rows.count > 0, rows
        needed = -(-rows.length // page_size)
        assert needed <= len(rows.pages), (rows, page_size)
        indices.extend(rows.pages[:needed])
        num_pages.append(needed)
        last_lengths.append(rows.length - (needed - 1) * page_size)
    return PageTable(
        _indptr([rows.count for rows in batch]), _indptr(num_pages), _int32(indices), _int32(last_lengths)
    )


def append_slots(batch: Seq[PagedRows]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two int32 [R]: the sequence of each new row, and the position where its key and value are written."""
    sequences = [b for b, rows in enumerate(batch) for _ in range(rows.count)]
    positions = [p for rows in batch for p in range(rows.start, rows.length)]
    return _int32(sequences), _int32(positions)


def rotary_positions(batch: Seq[PagedRows]) -> torch.Tensor:
    """int64 [R]: the text position of each new row. Siblings of a tree share one, though their slots differ."""
    positions: list[int] = []
    for rows in batch:
        parents = rows.parents or ()
        first = len(positions) + rows.count - len(parents)
        positions.extend(range(rows.start, rows.length - len(parents)))
        for parent in parents:
            before = positions[first + parent] if parent >= 0 else rows.length - len(parents) - 1
            positions.append(before + 1)
    return torch.tensor(positions, dtype=torch.int64)


def visible(rows: PagedRows) -> torch.Tensor:
    """bool [count, length]: what each row attends to. Chain rows: up to themselves; nodes: prefix and ancestors."""
    mask = torch.ones(rows.count, rows.length, dtype=torch.bool).tril_(diagonal=rows.start)
    if rows.parents is not None:
        num_nodes = len(rows.parents)
        first_row, first_position = rows.count - num_nodes, rows.length - num_nodes
        assert first_row >= 0, rows
        ancestors = mask[first_row:, first_position:]
        ancestors.copy_(torch.eye(num_nodes, dtype=torch.bool))
        for node, parent in enumerate(rows.parents):
            assert -1 <= parent < node, (node, rows.parents)
            if parent >= 0:
                ancestors[node] |= ancestors[parent]
    return mask


def flatten_masks(batch: Seq[PagedRows]) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch's masks as one bool array, and the int32 [B + 1] offsets at which each sequence's begins."""
    flat = torch.cat([visible(rows).flatten() for rows in batch])
    return flat, _indptr([rows.count * rows.length for rows in batch])


def pack_masks(flat: torch.Tensor, indptr: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight mask entries to a uint8, each sequence padded with zeros to whole bytes; int32 [B + 1] byte offsets.

    The same function of the same arguments as flashinfer's `segment_packbits(flat, indptr, bitorder="little")`.
    """
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    packed = []
    for segment in flat.tensor_split(indptr[1:-1].long()):
        bits = torch.nn.functional.pad(segment.to(torch.uint8), (0, -len(segment) % 8))
        packed.append((bits.view(-1, 8) * weights).sum(dim=1, dtype=torch.uint8))
    return torch.cat(packed), _indptr([len(p) for p in packed])


def unpack_masks(packed: torch.Tensor, byte_indptr: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """The flat bool array that `pack_masks` packed: bit `i % 8` of byte `i / 8`, sequence by sequence."""
    flat = []
    for b, size in enumerate(indptr.diff().tolist()):
        entries = torch.arange(size)
        bytes_ = packed[byte_indptr[b] + entries // 8]
        flat.append((bytes_ >> (entries % 8)).bitwise_and(1).bool())
    return torch.cat(flat)


def kernel_for(rows: PagedRows) -> Kernel:
    """The kernel that these rows need: one row, a chain of drafts, or a tree."""
    if rows.count == 1:
        return Kernel.DECODE
    return Kernel.CAUSAL if rows.is_chain else Kernel.TREE


def group_by_kernel(batch: Seq[PagedRows]) -> list[Group]:
    """Cut a batch by kernel, so that no chain pays for a mask: FlashInfer reads one per entry of rows * positions."""
    members: dict[Kernel, tuple[list[PagedRows], list[int]]] = {}
    row = 0
    for rows in batch:
        of_kernel, row_indices = members.setdefault(kernel_for(rows), ([], []))
        of_kernel.append(rows)
        row_indices.extend(range(row, row + rows.count))
        row += rows.count
    return [Group(kernel, tuple(rows), torch.tensor(indices)) for kernel, (rows, indices) in members.items()]


def uses_tensor_cores(config: ModelConfig) -> bool:
    """Whether decode should fold grouped heads into matrix tiles, sglang's rule (`flashinfer_backend.py`).

    Below four heads a group the plain kernel is faster. Above it lacks sizes, 5 and 7 among them (flashinfer
    `include/flashinfer/utils.cuh`, `DISPATCH_GQA_GROUP_SIZE`), while the folded one takes every size.
    """
    return config.num_heads // config.num_kv_heads >= 4


def refuse_unsupported(config: ModelConfig, dtype: torch.dtype) -> None:
    """SetupError for a model or a type that FlashInfer has no kernel for."""
    if config.head_dim not in HEAD_DIMS:
        raise SetupError(f"attention flashinfer has no kernel for head size {config.head_dim}, only for {HEAD_DIMS}")
    if dtype not in DTYPES:
        raise SetupError(f"attention flashinfer needs keys and values in float16 or bfloat16, not {dtype}")


def _indptr(counts: Seq[int]) -> torch.Tensor:
    """[n + 1] int32 running sum that starts with zero."""
    ends = torch.tensor([0, *counts], dtype=torch.int64).cumsum(0)
    assert int(ends[-1]) < 2**31, int(ends[-1])
    return ends.int()


def _int32(values: Seq[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
