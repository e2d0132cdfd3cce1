"""Attention of a head that is trained on its own drafts: each unrolled step sees the text and its own chain."""

from __future__ import annotations

import torch

from outrider.engine.attention.rotary import rotate, rotation_table, rotations_at
from outrider.engine.checkpoint import ModelConfig
from outrider.training.features import Batch


class UnrolledAttention:
    """EAGLE-3's training-time test (arXiv 2503.01840): step s at position t sees the text's pairs up to t - s, made
    of true states, and of its own chain the step i at position t - s + i, for i from 1 to s."""

    def __init__(self, config: ModelConfig, batch: Batch) -> None:
        self._config = config
        self._shape = batch.token_ids.shape
        num_rows, count = self._shape
        device = batch.token_ids.device
        table = rotation_table(config)[:count].to(device)
        self._rotations = rotations_at(config, table, list(range(count)) * num_rows)
        rows, columns = torch.arange(count, device=device).view(-1, 1), torch.arange(count, device=device)
        self._ages = rows - columns
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def __call__(self, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [B * n, (heads + 2 kv_heads) * head_dim] of the next step -> [B * n, heads * head_dim]."""
        c, (num_rows, count) = self._config, self._shape
        heads = rotate(qkv, self._rotations).view(num_rows, count, -1, c.head_dim).transpose(1, 2)
        groups = c.num_heads // c.num_kv_heads
        query, key, value = torch.split(heads, [c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=1)
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        step = len(self._keys)
        self._keys.append(key)
        self._values.append(value)
        scores = query @ self._keys[0].transpose(-1, -2)
        columns = [scores.masked_fill(self._ages < step, float("-inf"))]
        for i in range(1, step + 1):
            own = (query * self._keys[i].roll(step - i, dims=2)).sum(dim=-1, keepdim=True)
            columns.append(own)
        weights = torch.cat(columns, dim=-1).mul(c.head_dim**-0.5).softmax(dim=-1)
        out = weights[..., :count] @ self._values[0]
        for i in range(1, step + 1):
            out = out + weights[..., count + i - 1].unsqueeze(-1) * self._values[i].roll(step - i, dims=2)
        return out.transpose(1, 2).reshape(num_rows * count, -1)
