"""The network of EAGLE heads: one decoder layer over pairs of a target state and the token after it.

One definition for drafting and for training, which differ in how they multiply, normalise and attend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F

from outrider.engine.checkpoint import ModelConfig
from outrider.engine.linear import Linear
from outrider.engine.model import pair_up
from outrider.engine.norm import Norm

Kind = Literal["eagle", "eagle3"]
#: qkv [R, (heads + 2 kv_heads) * head_dim] -> attention output [R, heads * head_dim].
Attend = Callable[[torch.Tensor], torch.Tensor]
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]
MakeNorm = Callable[[torch.Tensor], Norm]


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Shape of a head, and which of the target's states it reads."""

    kind: Kind
    model: ModelConfig
    """Of its one layer; hidden size and vocabulary are the target's."""
    points: tuple[int, ...]
    """As `Taps` numbers them: the last states for an EAGLE head, a low, middle and high one for EAGLE-3."""
    draft_vocab_size: int | None = None
    """Tokens that it can draft; None means all."""
    has_fuse_bias: bool = False
    """Always of an EAGLE head; of few public EAGLE-3 ones."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensors that a checkpoint of this kind has, but for the tables of the draft vocabulary."""
        c, h = self.model, self.model.hidden_size
        is_three = self.kind == "eagle3"
        layer, width = ("midlayer." if is_three else "layers.0."), (2 * h if is_three else h)
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (h, (len(self.points) if is_three else 2) * h),
            f"{layer}self_attn.q_proj.weight": (c.num_heads * c.head_dim, width),
            f"{layer}self_attn.k_proj.weight": (c.num_kv_heads * c.head_dim, width),
            f"{layer}self_attn.v_proj.weight": (c.num_kv_heads * c.head_dim, width),
            f"{layer}self_attn.o_proj.weight": (h, c.num_heads * c.head_dim),
            f"{layer}mlp.gate_proj.weight": (c.intermediate_size, h),
            f"{layer}mlp.up_proj.weight": (c.intermediate_size, h),
            f"{layer}mlp.down_proj.weight": (h, c.intermediate_size),
            f"{layer}post_attention_layernorm.weight": (h,),
        }
        if self.has_fuse_bias:
            shapes["fc.bias"] = (h,)
        if not is_three:
            return shapes
        shapes |= {f"{layer}input_layernorm.weight": (h,), f"{layer}hidden_norm.weight": (h,), "norm.weight": (h,)}
        return shapes if self.draft_vocab_size is None else shapes | {"lm_head.weight": (self.draft_vocab_size, h)}


def usual_points(num_layers: int) -> tuple[int, int, int]:
    """Of EAGLE-3: a low, a middle and a high state, SGLang's default where that names three in order. A target of
    fewer than three layers has no three, and gives one twice."""
    low = max(0, min(2, num_layers - 3))
    middle = min(max(num_layers // 2, low + 1), num_layers - 1)
    return low, middle, min(max(num_layers - 3, middle + 1), num_layers - 1)


def config_for(target: ModelConfig, kind: Kind, draft_vocab_size: int | None = None) -> HeadConfig:
    """A new head for this target, with a layer of the target's shape; EAGLE-3 reads `usual_points`."""
    count = target.num_layers
    points = (count,) if kind == "eagle" else usual_points(count)
    own = replace(target, num_layers=1, has_tied_embeddings=False, has_qkv_bias=False, has_qk_norm=False)
    return HeadConfig(kind, own, points, draft_vocab_size, has_fuse_bias=kind == "eagle")


@dataclass(frozen=True, slots=True)
class EagleNet:
    """[R, hidden] embeddings of tokens and [R, hidden] states of the positions before them -> states there.

    After EAGLE (arXiv 2401.15077), whose state stands for the target's last one, and EAGLE-3 (arXiv 2503.01840),
    whose state starts from three of the target's layers and afterwards is only the head's own.
    """

    fuse: Linear
    input_norm: Norm | None
    """This and the other norms but `post_norm`: of EAGLE-3 only."""
    hidden_norm: Norm | None
    qkv: Linear
    output: Linear
    post_norm: Norm
    gate_up: Linear
    down: Linear
    last_norm: Norm | None

    def start(self, features: torch.Tensor) -> torch.Tensor:
        """The target's features -> states."""
        return features if self.input_norm is None else self.fuse(features)

    def step(self, embedded: torch.Tensor, states: torch.Tensor, attend: Attend) -> torch.Tensor:
        """One pass of the head: embedded tokens and states [n, hidden] to new states [n, hidden]."""
        if self.input_norm is None or self.hidden_norm is None:
            residual = mixed = self.fuse(torch.cat([embedded, states], dim=-1))
        else:
            residual = states
            mixed = torch.cat([self.input_norm(embedded), self.hidden_norm(states)], dim=-1)
        x = residual + self.output(attend(self.qkv(mixed)))
        gate, up = self.gate_up(self.post_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def finish(self, states: torch.Tensor) -> torch.Tensor:
        """States -> what the output matrix takes in."""
        return states if self.last_norm is None else self.last_norm(states)


def build(config: HeadConfig, tensors: Mapping[str, torch.Tensor], linear: MakeLinear, norm: MakeNorm) -> EagleNet:
    """From tensors by their names in a checkpoint, which may be parameters."""
    is_three, c = config.kind == "eagle3", config.model
    layer = "midlayer." if is_three else "layers.0."

    def of(name: str) -> torch.Tensor:
        return tensors[f"{layer}{name}.weight"]

    query, key = (pair_up(of(f"self_attn.{name}_proj"), c.head_dim) for name in "qk")
    return EagleNet(
        fuse=linear(tensors["fc.weight"], tensors.get("fc.bias")),
        input_norm=norm(of("input_layernorm")) if is_three else None,
        hidden_norm=norm(of("hidden_norm")) if is_three else None,
        qkv=linear(torch.cat([query, key, of("self_attn.v_proj")]), None),
        output=linear(of("self_attn.o_proj"), None),
        post_norm=norm(of("post_attention_layernorm")),
        gate_up=linear(torch.cat([of("mlp.gate_proj"), of("mlp.up_proj")]), None),
        down=linear(of("mlp.down_proj"), None),
        last_norm=norm(tensors["norm.weight"]) if is_three else None,
    )
