"""Attention on CUDA by FlashInfer over a paged cache: planned once per step, run once per layer."""

from __future__ import annotations

import importlib
from collections.abc import Sequence as Seq
from typing import Any, Protocol

import torch

from outrider.engine.attention import Segment
from outrider.engine.attention.flashinfer_layout import (
    Group,
    Kernel,
    PagedRows,
    append_slots,
    flatten_masks,
    group_by_kernel,
    page_table,
    refuse_unsupported,
    rotary_positions,
    uses_tensor_cores,
)
from outrider.engine.attention.rotary import rotate, rotations_at
from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import Pages
from outrider.engine.placement import Placement
from outrider.errors import SetupError

#: What FlashInfer recommends for the partial results of sequences that it splits over processors.
WORKSPACE_BYTES = 128 * 1024 * 1024


class FlashInferLibrary(Protocol):
    """What we call of the package `flashinfer`; its classes and functions under their own names."""

    BatchPrefillWithPagedKVCacheWrapper: Any
    BatchDecodeWithPagedKVCacheWrapper: Any
    append_paged_kv_cache: Any


def load_flashinfer() -> FlashInferLibrary:
    """SetupError says which of the package and the GPU is missing."""
    if not torch.cuda.is_available():
        raise SetupError("attention flashinfer needs a CUDA GPU and torch cannot use one; choose attention sdpa")
    try:
        library: Any = importlib.import_module("flashinfer")
    except ImportError as error:
        raise SetupError(
            f"attention flashinfer needs the package flashinfer-python ({error}); install it or choose attention sdpa"
        ) from error
    return library  # type: ignore[no-any-return]


class FlashInferKernels:
    """The wrappers that read a paged cache. Made once per model."""

    def __init__(self, library: FlashInferLibrary, config: ModelConfig, placement: Placement) -> None:
        """SetupError for a model or a type that FlashInfer has no kernel for."""
        refuse_unsupported(config, placement.dtype)
        self.library, self.config, self.placement = library, config, placement
        # One step's kernels run one after the other, so that they can share what they write partial results to.
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=placement.device)
        # fa2 is the one family with custom masks, so that chains and trees of a step come from the same arithmetic.
        prefill = library.BatchPrefillWithPagedKVCacheWrapper
        self._wrappers = {
            Kernel.CAUSAL: prefill(workspace, "NHD", backend="fa2"),
            Kernel.TREE: prefill(workspace, "NHD", backend="fa2"),
            Kernel.DECODE: library.BatchDecodeWithPagedKVCacheWrapper(
                workspace, "NHD", use_tensor_cores=uses_tensor_cores(config)
            ),
        }

    def plan(self, group: Group, page_size: int) -> Any:
        """The group's wrapper, ready to run in every layer."""
        c, device = self.config, self.placement.device
        wrapper = self._wrappers[group.kernel]
        table = page_table(group.rows, page_size).to(device)
        pages = (table.kv_indptr, table.kv_indices, table.last_page_len)
        shape = (c.num_heads, c.num_kv_heads, c.head_dim, page_size)
        types = {"q_data_type": self.placement.dtype, "kv_data_type": self.placement.dtype}
        if group.kernel is Kernel.DECODE:
            wrapper.plan(*pages, *shape, **types)
        elif group.kernel is Kernel.CAUSAL:
            wrapper.plan(table.qo_indptr, *pages, *shape, causal=True, **types)
        else:
            # Not `packed_custom_mask`: up to 0.7.2 flashinfer gives its kernel the offsets of the unpacked mask then
            # (flashinfer pull request 2201), which reads wrong bits for every sequence but the first.
            mask = flatten_masks(group.rows)[0].to(device)
            wrapper.plan(table.qo_indptr, *pages, *shape, custom_mask=mask, **types)
        return wrapper


class FlashInferAttention:
    """Attention of one batch: everything that does not depend on the layer is prepared once."""

    def __init__(
        self, kernels: FlashInferKernels, batch: Seq[PagedRows], table: torch.Tensor, pages: Seq[Pages]
    ) -> None:
        """`pages` of each layer are [num_pages, page_size, kv_heads, head_dim]; `table` is the rotations'."""
        self._kernels, self._pages = kernels, pages
        device, page_size = kernels.placement.device, pages[0][0].shape[1]
        self._rotations = rotations_at(kernels.config, table, rotary_positions(batch).tolist())
        self._table = page_table(batch, page_size).to(device)
        self._slots = tuple(t.to(device) for t in append_slots(batch))
        groups = group_by_kernel(batch)
        self._groups = [(kernels.plan(group, page_size), group.row_indices.to(device)) for group in groups]

    @classmethod
    def of_segments(
        cls, kernels: FlashInferKernels, segments: Seq[Segment], table: torch.Tensor
    ) -> FlashInferAttention:
        """Over the memory that all the segments' caches share; their blocks are its pages."""
        memory = segments[0].cache.memory
        assert all(segment.cache.memory is memory for segment in segments)
        batch = [PagedRows(tuple(s.cache.blocks), s.cache.length, len(s.token_ids), s.parents) for s in segments]
        return cls(kernels, batch, table, memory.pages)

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [R, (heads + 2 kv_heads) * head_dim] -> attention output [R, heads * head_dim]; writes the pages."""
        c, table, pages = self._kernels.config, self._table, self._pages[layer]
        heads = rotate(qkv, self._rotations)
        parts = torch.split_with_sizes(heads, (c.num_heads, c.num_kv_heads, c.num_kv_heads), dim=1)
        query, key, value = (part.contiguous() for part in parts)
        self._kernels.library.append_paged_kv_cache(
            key, value, *self._slots, pages, table.kv_indices, table.kv_indptr, table.last_page_len, kv_layout="NHD"
        )
        out = torch.empty_like(query)
        for wrapper, row_indices in self._groups:
            out[row_indices] = wrapper.run(query[row_indices], pages)
        return out.view(-1, c.num_heads * c.head_dim)
