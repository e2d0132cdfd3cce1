"""Matrices in 16 and in 8 bits: near the plain product, smaller, and drafts that stay much the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outrider.engine.attention import Segment
from outrider.engine.drafters.eagle_head import EagleHead
from outrider.engine.drafters.medusa import MedusaHeads
from outrider.engine.linear import has_fbgemm, pack, pack_int8
from outrider.engine.model import LlamaModel
from outrider.errors import ModelError
from random_heads import write_random_heads
from random_llama import write_random_llama

pytestmark = pytest.mark.skipif(not has_fbgemm(), reason="this build has no FBGEMM")


def test_products_are_near_and_smaller() -> None:
    """Errors of 16 bits are a thousandth of those that 8 bits may have; bias and a row of zeros are kept."""
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(40, 64, generator=generator), torch.randn(3, 64, generator=generator)
    weight[7] = 0.0
    bias = torch.randn(40, generator=generator)
    exact = x @ weight.T + bias
    half, eighth = pack(weight, bias), pack_int8(weight, bias)
    assert (half(x) - exact).abs().max() < 2e-2 and (eighth(x) - exact).abs().max() < 0.05 * exact.abs().max()
    assert half.num_bytes == 2 * weight.numel() and eighth.num_bytes == weight.numel()
    torch.testing.assert_close(eighth(x)[:, 7], bias[7].expand(3))
    with pytest.raises(ModelError, match="need FBGEMM on a CPU"):
        pack_int8(torch.empty(2, 2, device="meta"))


def test_rows_in_8_bits_do_not_depend_on_each_other() -> None:
    """In any company of other rows a row's product is the same; alone, where another kernel runs, up to rounding."""
    generator = torch.Generator().manual_seed(0)
    eighth = pack_int8(torch.randn(40, 64, generator=generator), torch.randn(40, generator=generator))
    x = torch.randn(6, 64, generator=generator)
    x[0, 3] = 1e4  # as in the first token's states, which would round all others away
    together = eighth(x)
    for row in range(len(x)):
        assert torch.equal(eighth(x[[row, 0]])[0], together[row])
        assert torch.equal(eighth(x[[5 - row, row]])[1], together[row])
        alone = eighth(x[row : row + 1])[0]
        assert (alone - together[row]).norm() < 1e-3 * alone.norm()


def test_overrides_are_not_looked_for() -> None:
    """Looking for them in packed weights takes longer than a small product; one in the other argument is not seen."""

    class Overriding(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *args: object) -> torch.Tensor:
            raise AssertionError(args)

    weight, x = torch.eye(16), torch.ones(1, 16)
    for linear in (pack(weight), pack_int8(weight)):
        torch.testing.assert_close(linear(x.as_subclass(Overriding)), x)


def test_models_and_heads_in_8_bits_draft_much_the_same(tmp_path: Path) -> None:
    """A small model's laws and those of heads move little; memory halves."""
    write_random_llama(tmp_path / "target", num_layers=2)
    write_random_heads(tmp_path, tmp_path / "target")
    models = [LlamaModel(tmp_path / "target", is_int8=is_int8) for is_int8 in (False, True)]
    text = tuple((5 * i * i + i) % 64 for i in range(40))
    whole, rounded = (model.forward([Segment(model.new_cache(40), text, 40)]).softmax(dim=-1) for model in models)
    assert torch.minimum(whole, rounded).sum(dim=-1).mean() > 0.85
    assert models[1].packed_bytes * 2 == models[0].packed_bytes
    for kind in ("eagle", "eagle3"):
        heads = [EagleHead(tmp_path / kind, models[0], is_int8=is_int8) for is_int8 in (False, True)]
        features = torch.randn(1, 32 * len(heads[0].points), generator=torch.Generator().manual_seed(1))
        laws = [h.logits(h.read(h.new_cache(8), [3], features)).softmax(dim=-1) for h in heads]
        assert torch.minimum(*laws).sum() > 0.8 and not torch.equal(*laws)
        assert heads[1].weight_bytes < heads[0].weight_bytes
    medusa = [MedusaHeads(tmp_path / "medusa", models[0], is_int8=is_int8) for is_int8 in (False, True)]
    laws = [one.logits(features[:, :32], 3).softmax(dim=-1) for one in medusa]
    assert torch.minimum(*laws).sum(dim=-1).min() > 0.8 and not torch.equal(*laws)
