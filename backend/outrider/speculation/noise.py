"""Random numbers that belong to a position, not to a step: the output is then the same with any drafter and any k."""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: int) -> int:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for output position `position` (0 is the first token) of a request with this seed."""
    stream = _mix((seed & _MASK) ^ _GOLDEN)  # neighbouring seeds must not give shifted copies of one sequence
    return (_mix((stream + _GOLDEN * (position + 1)) & _MASK) >> 11) * 2.0**-53


def uniforms(seed: int, first_position: int, count: int) -> torch.Tensor:
    """[count] float64: the numbers of `count` positions from `first_position` on."""
    return torch.tensor([uniform(seed, first_position + i) for i in range(count)], dtype=torch.float64)
