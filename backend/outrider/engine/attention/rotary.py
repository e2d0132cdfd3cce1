"""Rotary position embedding: the table of rotations, those of a step's rows, and the product."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

import torch

from outrider.engine.checkpoint import ModelConfig, RopeScaling


def rotation_table(config: ModelConfig) -> torch.Tensor:
    """[context, head_dim / 2] complex64: the rotation of each position and pair."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    speeds = config.rope_theta**-exponents
    if config.rope_scaling is not None:
        speeds = _slowed(speeds, config.rope_scaling)
    angles = torch.outer(torch.arange(config.context_length, dtype=torch.float64), speeds)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def _slowed(speeds: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Radians per token of each pair, after Llama 3.1: 0 of the change for fast pairs, all of it for slow ones."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * speeds / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return speeds * (kept + (1 - kept) / scaling.factor)


def rotations_at(config: ModelConfig, table: torch.Tensor, positions: Seq[int]) -> torch.Tensor:
    """[R, heads + 2 kv_heads, head_dim / 2] for rows at these positions: ones for values, which stay as they are.

    So one product over a row as it comes from the projection does, with no part cut out and joined again.
    """
    turns = table[torch.tensor(positions, device=table.device)].unsqueeze(1)
    num_turned = config.num_heads + config.num_kv_heads
    return torch.cat(
        [turns.expand(-1, num_turned, -1), torch.ones_like(turns).expand(-1, config.num_kv_heads, -1)], 1
    )


def rotate(qkv: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """qkv [R, (heads + 2 kv_heads) * head_dim] -> [R, heads + 2 kv_heads, head_dim] of its type, turned in float32.

    Rotary pairs are adjacent columns.
    """
    num_rows, num_heads, half = rotations.shape
    pairs = torch.view_as_complex(qkv.float().view(num_rows, num_heads, half, 2))
    return torch.view_as_real(pairs * rotations).view(num_rows, num_heads, 2 * half).to(qkv.dtype)


def rotate_in_place(qkv: torch.Tensor, rotations: torch.Tensor) -> None:
    """The same for contiguous rows that nobody needs as they were: in float32 no copy, and three operators fewer."""
    if qkv.dtype is torch.float32:
        torch.view_as_complex(qkv.view(*rotations.shape, 2)).mul_(rotations)
    else:
        qkv.copy_(rotate(qkv, rotations).view_as(qkv))
