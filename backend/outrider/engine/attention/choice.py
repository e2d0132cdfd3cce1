"""Which attention a model computes with, and where: FlashInfer on a GPU that has it, else scaled dot product."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache

import torch

from outrider.engine.attention import Segment
from outrider.engine.attention.flashinfer import (
    FlashInferAttention,
    FlashInferKernels,
    FlashInferLibrary,
    load_flashinfer,
)
from outrider.engine.attention.flashinfer_layout import refuse_unsupported
from outrider.engine.attention.rotary import rotation_table
from outrider.engine.attention.sdpa import SdpaAttention
from outrider.engine.checkpoint import ModelConfig
from outrider.engine.placement import CPU, Placement
from outrider.errors import SetupError

log = logging.getLogger(__name__)

#: (layer, qkv [R, (heads + 2 kv_heads) * head_dim]) -> attention output [R, heads * head_dim] of one batch.
Attend = Callable[[int, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Attention:
    """How a model attends, and where it therefore computes."""

    placement: Placement
    start: Callable[[Seq[Segment]], Attend]
    """Made once per step."""


def attention_for(config: ModelConfig) -> Attention:
    """The fastest that this machine can run. A GPU whose FlashInfer is missing or has no kernel gets sdpa there."""
    placement = placement_for(config)
    if placement.dtype is torch.float32:
        return sdpa_on(config, placement)
    return flashinfer_on(config, placement, load_flashinfer())


@cache
def placement_for(config: ModelConfig) -> Placement:
    """Where `attention_for` lets a model compute."""
    if not torch.cuda.is_available():
        return CPU
    device = torch.device("cuda")
    try:
        load_flashinfer()
        refuse_unsupported(config, torch.bfloat16)
    except SetupError as error:
        log.warning("attention by sdpa on the GPU: %s", error.message)
        return Placement(device, torch.float32)
    # Not fp16: Qwen2's activations outgrow it. FlashInfer has no float32.
    return Placement(device, torch.bfloat16)


def sdpa_on(config: ModelConfig, placement: Placement) -> Attention:
    """PyTorch's own attention, on any device."""
    table = rotation_table(config).to(placement.device)
    return Attention(placement, lambda segments: SdpaAttention(config, segments, table))


def flashinfer_on(config: ModelConfig, placement: Placement, library: FlashInferLibrary) -> Attention:
    """SetupError when FlashInfer has no kernel for this model or type."""
    kernels = FlashInferKernels(library, config, placement)
    table = rotation_table(config).to(placement.device)
    return Attention(placement, lambda segments: FlashInferAttention.of_segments(kernels, segments, table))
