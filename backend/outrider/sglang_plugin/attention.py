"""The attention backend of CPU lanes: any tree mask, planned once per forward and not once per layer."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from outrider.sglang_plugin.layout import Rows, attend, branch_rows, causal_rows, decode_rows, tree_rows


class TreeAttention(AttentionBackend):
    """Scaled dot-product attention per request, in torch."""

    def __init__(self, runner: Any) -> None:
        super().__init__()
        if runner.page_size != 1:
            raise ValueError(f"the attention backend of CPU lanes needs page size 1, not {runner.page_size}")
        self.device = runner.device
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.max_context_len = runner.model_config.context_len
        self.plan: list[Rows] = []

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Called by SGLang before each forward pass."""
        self.plan = self._planned(forward_batch)

    def _planned(self, forward_batch: Any) -> list[Rows]:
        mode = forward_batch.forward_mode
        if mode.is_idle():
            return []
        table = self.table_rows(forward_batch)
        lengths = forward_batch.seq_lens.tolist()
        if mode.is_decode():
            return decode_rows(table, lengths)
        if mode.is_target_verify():
            info = forward_batch.spec_info
            num_nodes = info.draft_token_num
            # A chain's mask is a triangle. A single node has none that could be read: its layout is another.
            if info.tree_topk == 1 or num_nodes == 1:
                return causal_rows(table, lengths, [num_nodes] * len(lengths))
            return tree_rows(table, lengths, info.custom_mask.view(len(lengths), num_nodes, num_nodes))
        prefixes, news = forward_batch.extend_prefix_lens.tolist(), forward_batch.extend_seq_lens.tolist()
        return causal_rows(table, prefixes, news)

    def table_rows(self, forward_batch: Any) -> list[torch.Tensor]:
        """Each request's row of the request table."""
        table = self.req_to_token_pool.req_to_token
        return [table[i] for i in forward_batch.req_pool_indices.tolist()]

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **_: object,
    ) -> torch.Tensor:
        """Called by SGLang in each layer: q, k and v [rows, heads * size] to [rows, heads * size]."""
        _check_layer(layer)
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None and v is not None:
            pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        queries = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        return attend(queries, keys, values, self.plan, layer.scaling).flatten(1)

    forward_decode = forward_extend

    def support_triton(self) -> bool:
        """Called by SGLang; there is no Triton on a CPU."""
        return False


class _DraftStep(TreeAttention):
    """One step of drafting: every branch is a row."""

    def __init__(self, runner: Any, topk: int, num_steps: int, step: int) -> None:
        super().__init__(runner)
        self.topk, self.num_steps, self.step = topk, num_steps, step

    def init_forward_metadata(self, forward_batch: Any) -> None:
        prefixes = forward_batch.seq_lens.tolist()
        self.plan = branch_rows(self.table_rows(forward_batch), prefixes, self.topk, self.num_steps, self.step)


class DraftSteps:
    """The steps of one round of drafting; the last needs no forward. SGLang takes them from `attn_backends`."""

    def __init__(self, runner: Any, topk: int, num_steps: int) -> None:
        self.attn_backends = [_DraftStep(runner, topk, num_steps, step) for step in range(num_steps - 1)]

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Called by SGLang before the passes of a draft."""
        for backend in self.attn_backends:
            backend.init_forward_metadata(forward_batch)


def _check_layer(layer: Any) -> None:
    """ValueError for what this backend does not compute, rather than a wrong answer."""
    window = getattr(layer, "sliding_window_size", None)
    if layer.is_cross_attention or layer.attn_type == AttentionType.ENCODER_ONLY:
        raise ValueError("the attention backend of CPU lanes has causal self-attention only")
    if window not in (None, -1) or getattr(layer, "logit_cap", 0.0) > 0.0:
        raise ValueError("the attention backend of CPU lanes has no sliding windows and no capped logits")
