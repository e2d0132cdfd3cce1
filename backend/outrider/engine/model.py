"""The forward pass of Llama, Qwen2 and Qwen3 over the flattened rows of all running sequences; no row is padding."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from outrider.engine.attention import Segment
from outrider.engine.attention.choice import Attention, attention_for
from outrider.engine.checkpoint import ModelConfig, Weights, read_config
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.linear import Linear, pack, pack_int8
from outrider.engine.norm import Norm, rms_norm
from outrider.engine.taps import Taps


@dataclass(slots=True)
class _Layer:
    input_norm: Norm
    qkv: Linear
    output: Linear
    post_norm: Norm
    gate_up: Linear
    down: Linear
    qk_norm: torch.Tensor | None
    """[heads + kv_heads, head_dim]: norm weights of each head of q and k, where the architecture has them."""


class LlamaModel:
    """Weights and forward pass. Rotary pairs are adjacent columns here, so that one complex product rotates them."""

    def __init__(
        self,
        folder: Path,
        attention_of: Callable[[ModelConfig], Attention] = attention_for,
        *,
        is_int8: bool = False,
    ) -> None:
        """`attention_of` chooses attention, and with it the device; `is_int8`: matrices in 8 bits, for drafts."""
        config = read_config(folder)
        self._is_int8 = is_int8
        weights = Weights(folder)
        self.config = config
        self._attention = attention_of(config)
        self.placement = self._attention.placement
        embedding = weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self._embedding = self._placed(embedding)
        self._layers = [self._load_layer(weights, f"model.layers.{i}.") for i in range(config.num_layers)]
        self._norm = self._rms_norm(weights.take("model.norm.weight", config.hidden_size))
        if config.has_tied_embeddings:
            head = embedding
        else:
            head = weights.take("lm_head.weight", config.vocab_size, config.hidden_size)
        self._head = self._packed(head)
        self.num_parameters = weights.num_taken

    @property
    def cache_bytes_per_token(self) -> int:
        """Memory of one cached position: keys and values of every layer."""
        c = self.config
        return 2 * self.placement.dtype.itemsize * c.num_layers * c.num_kv_heads * c.head_dim

    def new_cache(self, num_positions: int) -> SequenceCache:
        """A cache with memory of its own where this model computes."""
        return SequenceCache(self.config, num_positions, placement=self.placement)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.placement.device, self.placement.dtype)

    def _rms_norm(self, weight: torch.Tensor) -> Norm:
        return rms_norm(weight, self.config.rms_norm_eps, self.placement)

    def _packed(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        return pack_int8(weight, bias) if self._is_int8 else pack(weight, bias, self.placement)

    def _load_layer(self, weights: Weights, prefix: str) -> _Layer:
        c = self.config
        hidden, inner = c.hidden_size, c.intermediate_size
        gate = weights.take(f"{prefix}mlp.gate_proj.weight", inner, hidden)
        up = weights.take(f"{prefix}mlp.up_proj.weight", inner, hidden)
        return _Layer(
            input_norm=self._rms_norm(weights.take(f"{prefix}input_layernorm.weight", hidden)),
            qkv=self._load_qkv(weights, f"{prefix}self_attn."),
            output=self._packed(weights.take(f"{prefix}self_attn.o_proj.weight", hidden, c.num_heads * c.head_dim)),
            post_norm=self._rms_norm(weights.take(f"{prefix}post_attention_layernorm.weight", hidden)),
            gate_up=self._packed(torch.cat([gate, up])),
            down=self._packed(weights.take(f"{prefix}mlp.down_proj.weight", hidden, inner)),
            qk_norm=self._load_qk_norm(weights, f"{prefix}self_attn.") if c.has_qk_norm else None,
        )

    def _load_qkv(self, weights: Weights, prefix: str) -> Linear:
        c = self.config
        sizes = {"q": c.num_heads * c.head_dim, "k": c.num_kv_heads * c.head_dim, "v": c.num_kv_heads * c.head_dim}

        def stacked(kind: str, *columns: int) -> torch.Tensor:
            query, key, value = (
                weights.take(f"{prefix}{n}_proj.{kind}", rows, *columns) for n, rows in sizes.items()
            )
            return torch.cat([pair_up(query, c.head_dim), pair_up(key, c.head_dim), value])

        return self._packed(stacked("weight", c.hidden_size), stacked("bias") if c.has_qkv_bias else None)

    def _load_qk_norm(self, weights: Weights, prefix: str) -> torch.Tensor:
        c = self.config
        query, key = (pair_up(weights.take(f"{prefix}{n}_norm.weight", c.head_dim), c.head_dim) for n in "qk")
        return self._placed(torch.cat([query.expand(c.num_heads, -1), key.expand(c.num_kv_heads, -1)]))

    @property
    def packed_bytes(self) -> int:
        """Memory of the matrices, which every step reads once."""
        matrices = (linear for y in self._layers for linear in (y.qkv, y.output, y.gate_up, y.down))
        return sum(linear.num_bytes for linear in matrices) + self._head.num_bytes

    def narrow_head(self, num_tokens: int) -> Linear | None:
        """The output matrix of the first `num_tokens` tokens; None when only the packed matrix is left."""
        return self._packed(self._embedding[:num_tokens]) if self.config.has_tied_embeddings else None

    @property
    def embedding(self) -> torch.Tensor:
        """[V, hidden], where the model computes."""
        return self._embedding

    @property
    def head(self) -> Linear:
        """The output matrix, for states after the last norm."""
        return self._head

    @torch.inference_mode()
    def forward(
        self,
        segments: Seq[Segment],
        skip: frozenset[int] = frozenset(),
        head: Linear | None = None,
        taps: Taps | None = None,
    ) -> torch.Tensor:
        """Append all segments' rows to their caches; logits [sum of num_logits, V] float32, in segment order,
        on the CPU, where tokens are chosen.

        Layers in `skip` are left out, as self-speculation does; their part of the cache stays unwritten. `head`: a
        narrow one in place of the model's own, which then gives fewer columns. `taps`: takes states of all rows.
        """
        token_ids = torch.tensor([t for s in segments for t in s.token_ids], device=self.placement.device)
        x = F.embedding(token_ids, self._embedding)
        attend = self._attention.start(segments)
        for i, layer in enumerate(self._layers):
            if i in skip:
                continue
            if taps is not None:
                taps.take(i, x)
            x += layer.output(attend(i, self._qkv(layer, layer.input_norm(x))))
            gate, up = layer.gate_up(layer.post_norm(x)).chunk(2, dim=-1)
            x += layer.down(F.silu(gate).mul_(up))
        for segment in segments:
            segment.cache.extend(len(segment.token_ids))
        if taps is not None and self.config.num_layers in taps.points:
            taps.take(self.config.num_layers, self._norm(x))
        rows = _logit_rows(segments)
        if not rows:
            return torch.empty((0, self.config.vocab_size))
        if len(rows) < x.shape[0]:
            x = x[rows]
        return (head or self._head)(self._norm(x)).float().cpu()

    def _qkv(self, layer: _Layer, x: torch.Tensor) -> torch.Tensor:
        """x [R, hidden] -> [R, (heads + 2 kv_heads) * head_dim], before rotation."""
        qkv = layer.qkv(x)
        if layer.qk_norm is not None:
            num_normed, head_dim = layer.qk_norm.shape
            heads = qkv.view(x.shape[0], -1, head_dim)[:, :num_normed]
            # A norm without weights, because they differ between the heads of q and of k.
            heads.copy_(F.rms_norm(heads, (head_dim,), None, self.config.rms_norm_eps) * layer.qk_norm)
        return qkv


def _logit_rows(segments: Seq[Segment]) -> list[int]:
    rows: list[int] = []
    end = 0
    for segment in segments:
        end += len(segment.token_ids)
        rows.extend(range(end - segment.num_logits, end))
    return rows


def pair_up(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder each head's rows from halves to adjacent rotary pairs; dot products stay the same.

    weight [heads * head_dim, ...]: a matrix, its bias or a norm's weights, which must all follow one order.
    """
    return weight.view(-1, 2, head_dim // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
