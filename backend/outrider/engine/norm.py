"""Root mean square norm: torch's own, and on the CPU, where that is eight small operators, the same in four."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from outrider.engine.placement import CPU, Placement

#: x [rows, size] -> [rows, size].
Norm = Callable[[torch.Tensor], torch.Tensor]


def rms_norm(weight: torch.Tensor, eps: float, placement: Placement = CPU) -> Norm:
    """x * weight / sqrt(mean(x^2) + eps), for weight [size] and x of the placement's type."""
    weight = weight.to(placement.device, placement.dtype)
    size = weight.numel()
    if placement != CPU:
        return lambda x: torch.nn.functional.rms_norm(x, (size,), weight, eps)
    # sqrt(size) is taken out of the root and into the weights: |x| and sqrt(size * eps) are the legs of a triangle.
    scaled, leg = weight * math.sqrt(size), torch.tensor(math.sqrt(size * eps))
    return lambda x: x.div(torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), leg)).mul_(scaled)
