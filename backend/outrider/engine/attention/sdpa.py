"""Attention by torch's scaled dot product: one call per sequence, grouped queries folded into rows."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
import torch.nn.functional as F

from outrider.engine.attention import Segment
from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import SequenceCache


class SdpaAttention:
    """Attention of one batch, causal along chains and trees: what does not depend on the layer is prepared once."""

    def __init__(self, config: ModelConfig, segments: Seq[Segment], rotations: torch.Tensor) -> None:
        self._config = config
        self._parts: list[tuple[SequenceCache, slice, torch.Tensor | None]] = []
        positions: list[int] = []
        row = 0
        for segment in segments:
            end = row + len(segment.token_ids)
            positions.extend(segment.cache.length + depth for depth in segment.depths)
            self._parts.append((segment.cache, slice(row, end), self._mask(segment)))
            row = end
        self._rotation = rotations[positions].unsqueeze(1)

    def _mask(self, segment: Segment) -> torch.Tensor | None:
        """[groups * count, length + count] for query heads folded into rows; None when one row sees everything."""
        count = len(segment.token_ids)
        if count == 1:
            return None
        groups = self._config.num_heads // self._config.num_kv_heads
        bias = torch.zeros(count, segment.cache.length + count)
        bias[:, segment.cache.length :].masked_fill_(~segment.visible, float("-inf"))
        return bias.repeat(groups, 1)

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [R, (heads + 2 kv_heads) * head_dim] -> attention output [R, heads * head_dim]."""
        c = self._config
        num_rows, num_rotated = qkv.shape[0], c.num_heads + c.num_kv_heads
        heads = qkv.view(num_rows, num_rotated + c.num_kv_heads, c.head_dim)
        pairs = torch.view_as_complex(heads[:, :num_rotated].reshape(num_rows, num_rotated, -1, 2))
        rotated = torch.view_as_real(pairs * self._rotation).view(num_rows, num_rotated, c.head_dim)
        query, key = rotated[:, : c.num_heads], rotated[:, c.num_heads :]
        value = heads[:, num_rotated:]
        outputs = []
        for cache, rows, mask in self._parts:
            keys, values = cache.append(layer, key[rows].transpose(0, 1), value[rows].transpose(0, 1))
            outputs.append(self._attend(query[rows], keys, values, mask))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """query [r, heads, d], keys and values [kv_heads, n, d] -> [r, heads * d]; query groups become rows."""
        c = self._config
        count, groups = query.shape[0], c.num_heads // c.num_kv_heads
        folded = query.view(count, c.num_kv_heads, groups, c.head_dim).permute(1, 2, 0, 3)
        folded = folded.reshape(1, c.num_kv_heads, groups * count, c.head_dim)
        out = F.scaled_dot_product_attention(folded, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask)
        out = out.view(c.num_kv_heads, groups, count, c.head_dim).permute(2, 0, 1, 3)
        return out.reshape(count, c.num_heads * c.head_dim)
