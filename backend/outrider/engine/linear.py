"""Linear layers: on the CPU FBGEMM's packed fp16 weights with fp32 activations, where the build has it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from outrider.engine.placement import CPU, Placement
from outrider.errors import ModelError

#: What inputs go up to in int8: 7 bits, since two products with 8-bit weights must not overflow 16 bits on the way.
_MAX_INPUT = 127


@dataclass(frozen=True, slots=True)
class Linear:
    """x [rows, in] -> [rows, out]."""

    run: Callable[[torch.Tensor], torch.Tensor]
    num_bytes: int
    """What every call reads of the weights."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in] to [..., out].

        PyTorch looks for overrides (`__torch_function__`) of an operator in its arguments, and in packed weights it
        takes an exception to find none: a twelfth of a decode step, in all. Nothing here overrides.
        """
        with torch._C.DisableTorchFunctionSubclass():
            return self.run(x)


def has_fbgemm() -> bool:
    """Whether PyTorch was built with the kernels for int8 weights."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None, placement: Placement = CPU) -> Linear:
    """weight [out, in] and bias [out] float32 -> a function of x [rows, in], which has the placement's type.

    The packed form rounds weights to fp16 (checkpoints in fp16 lose nothing) and halves the memory that a step
    reads, which is what a decode step waits for. A plain product is used on other devices, for other types, and
    when fp16 cannot hold the weights.
    """
    if placement == CPU and has_fbgemm() and bool(weight.abs().max() < torch.finfo(torch.float16).max):
        packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
        run = torch.ops.quantized.linear_dynamic_fp16.default
        return Linear(lambda x: run(x, packed), 2 * weight.numel())
    weight = weight.to(placement.device, placement.dtype)
    bias = None if bias is None else bias.to(placement.device, placement.dtype)
    return Linear(lambda x: torch.nn.functional.linear(x, weight, bias), weight.nbytes)


def pack_int8(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The same on the CPU with weights in 8 bits, a scale per row, and inputs rounded as they come.

    A product is off by one or two per cent, so this is for drafts, which may be wrong. Every row of the input has a
    range of its own: one for all would let a row of large values, as the first token's are, round the others away.
    ModelError without FBGEMM.
    """
    if weight.device.type != "cpu" or not has_fbgemm():
        raise ModelError("drafters in int8 need FBGEMM on a CPU, which is not there")
    scales = weight.abs().amax(dim=1).clamp_(min=1e-12).double() / 127
    with warnings.catch_warnings():
        # torch warns that its quantised tensors go one day; nothing else runs 8-bit weights well here.
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        zeros = torch.zeros(len(scales), dtype=torch.long)
        rounded = torch.quantize_per_channel(weight.contiguous(), scales, zeros, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(rounded, None)
        row_sums = rounded.dequantize().sum(dim=1)
    for_one, for_many = (
        torch.ops.quantized.linear_dynamic.default,
        torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default,
    )

    def run(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor
        if x.numel() == x.shape[-1]:
            y = for_one(x, packed, True)  # the same in one call, which has one range for all rows
        else:
            low, high = x.aminmax(dim=-1, keepdim=True)
            step = high.clamp_(min=1e-12).sub_(low.clamp_(max=0.0)).div_(_MAX_INPUT)
            zero = low.div_(step).round_()  # on the grid: most inputs are next to 0, and must not all be off one way
            y = for_many((x / step).sub_(zero), 1.0, 0, packed).addcmul_(zero, row_sums).mul_(step)
        return y if bias is None else y.add_(bias)

    return Linear(run, weight.numel())
