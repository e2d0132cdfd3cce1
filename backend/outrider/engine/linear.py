"""Linear layers for CPU decoding: FBGEMM's packed fp16 weights with fp32 activations, where the build has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Linear:
    """x [rows, in] -> [rows, out]."""

    run: Callable[[torch.Tensor], torch.Tensor]
    num_bytes: int
    """What every call reads of the weights."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


def has_fbgemm() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """weight [out, in] and bias [out] float32 -> a function of x [rows, in].

    The packed form rounds weights to fp16 (checkpoints in fp16 lose nothing) and halves the memory that a step
    reads, which is what a decode step waits for. Plain fp32 is used when fp16 cannot hold the weights.
    """
    if not has_fbgemm() or not bool((weight.abs().max() < torch.finfo(torch.float16).max).all()):
        return Linear(lambda x: torch.nn.functional.linear(x, weight, bias), weight.nbytes)
    packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
    run = torch.ops.quantized.linear_dynamic_fp16.default
    return Linear(lambda x: run(x, packed), 2 * weight.numel())
