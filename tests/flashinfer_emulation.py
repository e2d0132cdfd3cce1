"""FlashInfer's documented interface on the CPU: it sees nothing but the tensors that the library would get."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.engine.attention.flashinfer_layout import pack_masks
from outrider.engine.checkpoint import ModelConfig


def shape(num_heads: int, num_kv_heads: int, head_dim: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=1, hidden_size=1, intermediate_size=1, num_layers=2, num_heads=num_heads,
        num_kv_heads=num_kv_heads, head_dim=head_dim, rms_norm_eps=1e-5, rope_theta=1e4, context_length=128,
        has_tied_embeddings=False, eos_token_ids=(),
    )  # fmt: skip


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
