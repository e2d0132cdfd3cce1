"""Packed linear layers."""

from __future__ import annotations

import torch

from outrider.sglang_plugin.linears import features, pack, packed_of


def test_a_packed_layer_computes_the_same() -> None:
    """Exactly what a linear layer gives, up to the rounding of sums, for weights that fp16 holds."""
    torch.manual_seed(6)
    layer = torch.nn.Linear(48, 80)
    with torch.no_grad():
        layer.weight.copy_(layer.weight.half().float())
    run = pack(layer.weight, layer.bias)
    assert run is not None
    x = torch.randn(7, 48)
    torch.testing.assert_close(run(x), layer(x).detach(), rtol=1e-5, atol=1e-5)


def test_what_fp16_cannot_hold_is_left_alone() -> None:
    """Too large weights, and other types."""
    assert pack(torch.full((4, 4), 1e5), None) is None
    assert pack(torch.ones(4, 4, dtype=torch.bfloat16), None) is None


def test_updated_weights_are_packed_anew() -> None:
    """The packed form is kept until SGLang has written other weights, which it does into the old memory."""
    layer = torch.nn.Linear(8, 8, bias=False)
    first = packed_of(layer, None)
    assert packed_of(layer, None) is first
    layer.weight.data.copy_(torch.zeros(8, 8))
    (note,) = {hook.function for feature in features() for hook in feature.hooks if hook.kind == "after"}
    assert note is not None
    note((True, "done"))
    again = packed_of(layer, None)
    assert again is not first
    assert again is not None
    assert bool((again(torch.ones(1, 8)) == 0).all())
