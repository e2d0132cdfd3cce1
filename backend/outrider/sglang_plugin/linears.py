"""Linear layers of a CPU lane through FBGEMM's packed fp16 weights, which halves what a decoding step reads.

Weights are rounded to fp16: a checkpoint in fp16 loses nothing, one in bf16 or fp32 up to 2^-11 of a weight, or 2^-25
where that is more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from outrider.sglang_plugin.hooks import Feature, Hook

#: Set to 0, layers stay as they are.
_SWITCH = "OUTRIDER_PACKED_LINEARS"
_PACKED = "_outrider_packed"
#: Ways in which SGLang gives a model other weights.
_UPDATES = (
    "update_weights_from_disk", "load_weights_from_distributed", "update_weights_from_tensor",
    "update_weights_from_ipc", "end_weight_update",
)  # fmt: skip
#: x [rows, in] -> [rows, out]
_Run: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> _Run | None:
    """weight [out, in] and bias [out] float32 -> a function of x [rows, in]; None where fp16 cannot hold them."""
    is_float32 = weight.dtype == torch.float32 and weight.device.type == "cpu"
    if not is_float32 or not bool(weight.abs().max() < torch.finfo(torch.float16).max):
        return None
    packed = torch.ops.quantized.linear_prepack_fp16(weight.detach().contiguous(), bias)
    product: Callable[[torch.Tensor, object], torch.Tensor] = torch.ops.quantized.linear_dynamic_fp16.default

    def run(x: torch.Tensor) -> torch.Tensor:
        # PyTorch looks for overrides of an operator in its arguments, and in packed weights it takes an exception to
        # find none, which is longer than the call.
        with torch._C.DisableTorchFunctionSubclass():
            return product(x, packed)

    return run


class _Weights:
    """SGLang writes new weights into the old memory, past torch's own count of writes."""

    num_updates = 0


def _note_update(result: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER anything that gives the model other weights."""
    _Weights.num_updates += 1


def packed_of(layer: Any, bias: torch.Tensor | None) -> _Run | None:
    """The layer's packed form, made when first asked for and again after an update of weights."""
    weight = layer.weight
    key = (_Weights.num_updates, weight.data_ptr(), None if bias is None else bias.data_ptr())
    known: tuple[object, _Run | None] | None = layer.__dict__.get(_PACKED)
    if known is None or known[0] != key:
        known = layer.__dict__[_PACKED] = (key, pack(weight, bias))
    return known[1]


def _apply(
    original: Callable[..., Any], method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
) -> Any:
    """AROUND the linear method of layers that are not quantised."""
    run = packed_of(layer, bias)
    if run is None or x.dtype != torch.float32:
        return original(method, layer, x, bias)
    return run(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


def _head(
    original: Callable[..., Any],
    processor: Any,
    hidden_states: torch.Tensor,
    lm_head: Any,
    embedding_bias: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> Any:
    """AROUND the output layer, which multiplies by itself."""
    is_plain = hasattr(lm_head, "weight") and not hasattr(lm_head, "set_lora")
    run = packed_of(lm_head, embedding_bias) if is_plain and hidden_states.dtype == torch.float32 else None
    if run is None:
        return original(processor, hidden_states, lm_head, embedding_bias, out=out)
    return run(hidden_states)


def _switched_off() -> str | None:
    if os.environ.get(_SWITCH) == "0":
        return f"{_SWITCH} is 0"
    return None if "fbgemm" in torch.backends.quantized.supported_engines else "this build of torch has no FBGEMM"


def features() -> list[Feature]:
    """None when they are switched off, or cannot be had."""
    if _switched_off() is not None:
        return []
    method = "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply"
    head = "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head"
    updater = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
    hooks = (
        *(Hook(f"{updater}.{name}", "after", _note_update) for name in _UPDATES),
        Hook(method, "around", _apply, ("layer", "x", "bias")),
        Hook(head, "around", _head, ("hidden_states", "lm_head", "embedding_bias", "out")),
    )
    return [Feature(("linears",), hooks)]
