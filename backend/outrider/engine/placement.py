"""Where a model computes: the device of its weights and its cache, and the type of activations, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Placement:
    """Device and type of everything that a forward pass touches."""

    device: torch.device
    dtype: torch.dtype

    @property
    def is_cpu(self) -> bool:
        """Whether tensors lie in main memory."""
        return self.device.type == "cpu"


CPU = Placement(torch.device("cpu"), torch.float32)
