"""Attention on CUDA by FlashInfer over a paged cache: planned once per step, run once per layer."""

from __future__ import annotations

import importlib
from collections.abc import Sequence as Seq
from typing import Any, Protocol

import torch

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
from outrider.engine.checkpoint import ModelConfig
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


class FlashInferCache:
    """Pages of every layer, and the wrappers that read them. Made once per engine."""

    def __init__(
        self, library: FlashInferLibrary, config: ModelConfig, num_pages: int, page_size: int, like: torch.Tensor
    ) -> None:
        """`like` gives type and device. Per layer, keys and values are [num_pages, page_size, kv_heads, head_dim]."""
        refuse_unsupported(config, like.dtype)
        self.library = library
        self.page_size = page_size
        self.device, self.dtype = like.device, like.dtype
        shape = (num_pages, page_size, config.num_kv_heads, config.head_dim)
        self.pages = [(like.new_empty(shape), like.new_empty(shape)) for _ in range(config.num_layers)]
        # One step's kernels run one after the other, so that they can share what they write partial results to.
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=self.device)
        # fa2 is the one family with custom masks, so that chains and trees of a step come from the same arithmetic.
        prefill = library.BatchPrefillWithPagedKVCacheWrapper
        self.wrappers = {
            Kernel.CAUSAL: prefill(workspace, "NHD", backend="fa2"),
            Kernel.TREE: prefill(workspace, "NHD", backend="fa2"),
            Kernel.DECODE: library.BatchDecodeWithPagedKVCacheWrapper(
                workspace, "NHD", use_tensor_cores=uses_tensor_cores(config)
            ),
        }


class FlashInferAttention:
    """Attention of one batch: everything that does not depend on the layer is prepared once."""

    def __init__(
        self, config: ModelConfig, batch: Seq[PagedRows], rotations: torch.Tensor, cache: FlashInferCache
    ) -> None:
        """rotations [context, head_dim / 2] complex64 on the cache's device."""
        self._config, self._cache = config, cache
        self._rotation = rotations[rotary_positions(batch).to(cache.device)].unsqueeze(1)
        self._table = page_table(batch, cache.page_size).to(cache.device)
        self._slots = tuple(t.to(cache.device) for t in append_slots(batch))
        self._groups = [(self._plan(group), group.row_indices.to(cache.device)) for group in group_by_kernel(batch)]

    def _plan(self, group: Group) -> Any:
        """The group's wrapper, ready to run."""
        c, cache = self._config, self._cache
        wrapper = cache.wrappers[group.kernel]
        table = page_table(group.rows, cache.page_size).to(cache.device)
        pages = (table.kv_indptr, table.kv_indices, table.last_page_len)
        shape = (c.num_heads, c.num_kv_heads, c.head_dim, cache.page_size)
        types = {"q_data_type": cache.dtype, "kv_data_type": cache.dtype}
        if group.kernel is Kernel.DECODE:
            wrapper.plan(*pages, *shape, **types)
        elif group.kernel is Kernel.CAUSAL:
            wrapper.plan(table.qo_indptr, *pages, *shape, causal=True, **types)
        else:
            # Not `packed_custom_mask`: up to 0.7.2 flashinfer gives its kernel the offsets of the unpacked mask then
            # (flashinfer pull request 2201), which reads wrong bits for every sequence but the first.
            mask = flatten_masks(group.rows)[0].to(cache.device)
            wrapper.plan(table.qo_indptr, *pages, *shape, custom_mask=mask, **types)
        return wrapper

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [R, (heads + 2 kv_heads) * head_dim] -> attention output [R, heads * head_dim]; writes the pages."""
        c, table, pages = self._config, self._table, self._cache.pages[layer]
        query, key, value = self._rotate(qkv)
        self._cache.library.append_paged_kv_cache(
            key, value, *self._slots, pages, table.kv_indices, table.kv_indptr, table.last_page_len, kv_layout="NHD"
        )
        out = torch.empty_like(query)
        for wrapper, row_indices in self._groups:
            out[row_indices] = wrapper.run(query[row_indices], pages)
        return out.view(-1, c.num_heads * c.head_dim)

    def _rotate(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query [R, heads, d], key and value [R, kv_heads, d]; rotary pairs, adjacent columns, turn in float32."""
        c = self._config
        num_rows, num_rotated = qkv.shape[0], c.num_heads + c.num_kv_heads
        heads = qkv.view(num_rows, num_rotated + c.num_kv_heads, c.head_dim)
        pairs = torch.view_as_complex(heads[:, :num_rotated].float().reshape(num_rows, num_rotated, -1, 2))
        rotated = torch.view_as_real(pairs * self._rotation).view(num_rows, num_rotated, c.head_dim).to(qkv.dtype)
        query, key, value = rotated[:, : c.num_heads], rotated[:, c.num_heads :], heads[:, num_rotated:]
        return query.contiguous(), key.contiguous(), value.contiguous()
