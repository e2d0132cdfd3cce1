"""Rotation of rows: in place it gives the very numbers of the copy, and values stay as they are."""

from __future__ import annotations

from pathlib import Path

import torch

from outrider.engine.attention.rotary import rotate, rotate_in_place, rotation_table, rotations_at
from outrider.engine.checkpoint import ModelConfig, read_config


def _turned(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random rows, the same turned into a copy, and turned in place."""
    torch.manual_seed(0)
    rotations = rotations_at(config, rotation_table(config), [0, 3, 3, 17])
    qkv = torch.randn(4, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
    there = qkv.clone()
    rotate_in_place(there, rotations)
    return qkv, rotate(qkv, rotations).view(4, -1), there


def test_in_place_equals_the_copy(attentive_folder: Path) -> None:
    """Bit for bit, at any position."""
    qkv, copied, there = _turned(read_config(attentive_folder))
    assert torch.equal(copied, there) and not torch.equal(qkv[1], there[1])


def test_position_zero_and_values_stay(attentive_folder: Path) -> None:
    """The first position is turned by nothing, and values by nothing anywhere."""
    config = read_config(attentive_folder)
    qkv, _, there = _turned(config)
    assert torch.equal(qkv[0], there[0])
    num_values = config.num_kv_heads * config.head_dim
    assert torch.equal(qkv[:, -num_values:], there[:, -num_values:])
