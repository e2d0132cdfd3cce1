"""An EAGLE head ready to draft for a target: packed weights, shared embedding, attention over its own cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from outrider.engine.attention.rotary import rotate, rotation_table, rotations_at
from outrider.engine.drafters.draft_vocabulary import DraftVocabulary
from outrider.engine.drafters.eagle_checkpoint import read_head
from outrider.engine.drafters.eagle_net import build
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.linear import Linear, pack, pack_int8
from outrider.engine.model import LlamaModel
from outrider.engine.norm import Norm, rms_norm


class EagleHead:
    """Weights and steps of a head; what belongs to one text is in its cache."""

    def __init__(self, folder: Path, target: LlamaModel, *, is_int8: bool = False) -> None:
        """ModelError when the folder holds no head for this target. `is_int8`: its matrices in 8 bits."""
        stored = read_head(folder, target.config)
        self.kind = stored.config.kind
        self.config = stored.config.model
        self.points = stored.config.points
        self.accuracy = stored.accuracy
        self._target = target
        self.placement = placement = target.placement

        def linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
            return pack_int8(weight, bias) if is_int8 else pack(weight, bias, placement)

        def norm(weight: torch.Tensor) -> Norm:
            return rms_norm(weight, self.config.rms_norm_eps, placement)

        self._net = build(stored.config, stored.tensors, linear, norm)
        own = stored.tensors.get("lm_head.weight")
        self.vocabulary = DraftVocabulary(
            target, stored.token_ids, None if own is None else linear(own, None), is_int8=is_int8
        )
        self._table = rotation_table(self.config).to(placement.device)
        net = self._net
        matrices = (net.fuse, net.qkv, net.output, net.gate_up, net.down)
        self.weight_bytes = sum(linear.num_bytes for linear in matrices) + self.vocabulary.num_bytes

    @property
    def cache_bytes_per_token(self) -> int:
        """Memory of one cached position: keys and values of its only layer."""
        return 2 * self.placement.dtype.itemsize * self.config.num_kv_heads * self.config.head_dim

    def new_cache(self, num_positions: int) -> SequenceCache:
        """For one sequence."""
        return SequenceCache(self.config, num_positions, placement=self.placement)

    @torch.inference_mode()
    def read(self, cache: SequenceCache, token_ids: Sequence[int], features: torch.Tensor) -> torch.Tensor:
        """Append pairs of the text, a feature and the token after it, to the cache; states [n, hidden] there."""
        start, count = cache.length, len(token_ids)
        visible = torch.ones(count, start + count, dtype=torch.bool).tril_(start)
        states = self._net.start(features.to(self.placement.dtype))
        return self.step(cache, token_ids, states, range(start, start + count), visible)

    @torch.inference_mode()
    def step(
        self,
        cache: SequenceCache,
        token_ids: Sequence[int],
        states: torch.Tensor,
        positions: Sequence[int],
        visible: torch.Tensor,
    ) -> torch.Tensor:
        """Append rows to the cache: states [n, hidden] before the tokens -> states after them.

        `visible` [n, cache.length + n] bool: which cached rows and which of these a row sees. Positions count from
        the cache's first one: rotation knows only differences.
        """
        c, start, end = self.config, cache.length, cache.length + len(token_ids)
        device = self.placement.device
        rotations = rotations_at(c, self._table, positions)
        mask = None if bool(visible.all()) else visible.to(device)
        slots = torch.tensor(cache.slots(start, end), device=device)

        def attend(qkv: torch.Tensor) -> torch.Tensor:
            heads = rotate(qkv, rotations)
            entries = heads[:, c.num_heads :].view(-1, 2, c.num_kv_heads, c.head_dim).transpose(0, 1)
            cache.memory.write(0, slots, entries)
            query, key, value = (
                t.transpose(0, 1).unsqueeze(0) for t in (heads[:, : c.num_heads], *cache.read(0, end))
            )
            out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
            return out.squeeze(0).transpose(0, 1).reshape(len(token_ids), -1)

        tokens = torch.tensor(token_ids, device=device)
        states = self._net.step(F.embedding(tokens, self._target.embedding), states, attend)
        cache.extend(len(token_ids))
        return states

    @torch.inference_mode()
    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[n, draft vocabulary] float32 on the CPU, of the tokens that follow."""
        return self.vocabulary.logits(self._net.finish(states))
