"""The Llama forward pass over the flattened rows of all running sequences; no row is padding."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from outrider.engine.checkpoint import ModelConfig, Weights, read_config
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.linear import Linear, pack


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one sequence in a batch: they follow the `cache.length` positions that are already cached."""

    cache: SequenceCache
    token_ids: tuple[int, ...]
    num_logits: int
    """How many of the last rows need logits: all of a verify step, the last of a prompt, else none."""


@dataclass(slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """Weights and forward pass. Rotary pairs are adjacent columns here, so that one complex product rotates them."""

    def __init__(self, folder: Path) -> None:
        config = read_config(folder)
        weights = Weights(folder)
        self.config = config
        self._embedding = weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self._layers = [self._load_layer(weights, f"model.layers.{i}.") for i in range(config.num_layers)]
        self._norm = weights.take("model.norm.weight", config.hidden_size)
        if config.has_tied_embeddings:
            head = self._embedding
        else:
            head = weights.take("lm_head.weight", config.vocab_size, config.hidden_size)
        self._head = pack(head)
        self._rotations = _rotations(config)

    def _load_layer(self, weights: Weights, prefix: str) -> _Layer:
        c = self.config
        hidden, inner = c.hidden_size, c.intermediate_size
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        query = weights.take(f"{prefix}self_attn.q_proj.weight", q_size, hidden)
        key = weights.take(f"{prefix}self_attn.k_proj.weight", kv_size, hidden)
        value = weights.take(f"{prefix}self_attn.v_proj.weight", kv_size, hidden)
        gate = weights.take(f"{prefix}mlp.gate_proj.weight", inner, hidden)
        up = weights.take(f"{prefix}mlp.up_proj.weight", inner, hidden)
        return _Layer(
            input_norm=weights.take(f"{prefix}input_layernorm.weight", hidden),
            qkv=pack(torch.cat([_pair_up(query, c.head_dim), _pair_up(key, c.head_dim), value])),
            output=pack(weights.take(f"{prefix}self_attn.o_proj.weight", hidden, q_size)),
            post_norm=weights.take(f"{prefix}post_attention_layernorm.weight", hidden),
            gate_up=pack(torch.cat([gate, up])),
            down=pack(weights.take(f"{prefix}mlp.down_proj.weight", hidden, inner)),
        )

    @torch.inference_mode()
    def forward(self, segments: Seq[Segment]) -> torch.Tensor:
        """Append all segments' rows to their caches; logits [sum of num_logits, V] float32, in segment order."""
        eps, width = self.config.rms_norm_eps, (self.config.hidden_size,)
        x = F.embedding(torch.tensor([t for s in segments for t in s.token_ids]), self._embedding)
        attend = _Attention(self.config, segments, self._rotations)
        for i, layer in enumerate(self._layers):
            x = x + layer.output(attend(i, layer.qkv(F.rms_norm(x, width, layer.input_norm, eps))))
            gate, up = layer.gate_up(F.rms_norm(x, width, layer.post_norm, eps)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        for segment in segments:
            segment.cache.extend(len(segment.token_ids))
        rows = _logit_rows(segments)
        if not rows:
            return x.new_empty((0, self.config.vocab_size))
        if len(rows) < x.shape[0]:
            x = x[rows]
        return self._head(F.rms_norm(x, width, self._norm, eps))


class _Attention:
    """Causal attention of one batch: everything that does not depend on the layer is prepared once."""

    def __init__(self, config: ModelConfig, segments: Seq[Segment], rotations: torch.Tensor) -> None:
        self._config = config
        self._parts: list[tuple[SequenceCache, int, int, int, torch.Tensor | None]] = []
        positions: list[int] = []
        row = 0
        for segment in segments:
            start, count = segment.cache.length, len(segment.token_ids)
            positions.extend(range(start, start + count))
            self._parts.append((segment.cache, row, count, start, self._mask(start, count)))
            row += count
        self._rotation = rotations[positions].unsqueeze(1)

    def _mask(self, start: int, count: int) -> torch.Tensor | None:
        """[groups * count, start + count] for query heads folded into rows; None when one row sees everything."""
        if count == 1:
            return None
        mask = torch.ones(count, start + count, dtype=torch.bool).tril_(diagonal=start)
        groups = self._config.num_heads // self._config.num_kv_heads
        bias = torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))
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
        for cache, row, count, start, mask in self._parts:
            rows, end = slice(row, row + count), start + count
            keys, values = cache.keys[layer][:, :end], cache.values[layer][:, :end]
            keys[:, start:] = key[rows].transpose(0, 1)
            values[:, start:] = value[rows].transpose(0, 1)
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


def _logit_rows(segments: Seq[Segment]) -> list[int]:
    rows: list[int] = []
    end = 0
    for segment in segments:
        end += len(segment.token_ids)
        rows.extend(range(end - segment.num_logits, end))
    return rows


def _pair_up(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder each head's rows from halves to adjacent rotary pairs; dot products stay the same."""
    columns = weight.shape[1]
    return weight.view(-1, 2, head_dim // 2, columns).transpose(1, 2).reshape(-1, columns)


def _rotations(config: ModelConfig) -> torch.Tensor:
    """[context, head_dim / 2] complex64: the rotation of each position and pair."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(torch.arange(config.context_length, dtype=torch.float64), config.rope_theta**-exponents)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
