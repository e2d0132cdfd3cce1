"""The pure parts of the sampling hooks: filters before a kernel, and seeds."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from outrider.sglang_plugin.sampling import jointly_filtered, seed_of
from outrider.speculation.target import SamplingLaw, Target


def test_filters_apply_jointly() -> None:
    """The kept sets of top-k, top-p and min-p on the unfiltered law, intersected: what our own target law does."""
    torch.manual_seed(5)
    logits = torch.randn(200, 12) * 2
    probs = logits.softmax(dim=-1)
    law = SamplingLaw(1.0, 6, 0.8, 0.15)
    ranked = probs.sort(dim=-1, descending=True)
    top_k = probs * (probs >= ranked.values[:, 5:6])
    before = (ranked.values.cumsum(-1) - ranked.values).gather(1, ranked.indices.argsort(-1))
    top_p = probs * (before < 0.8)
    filtered = jointly_filtered(probs, [top_k, top_p], torch.full((200,), 0.15))
    expected = torch.stack([Target(row[None], law).probs(0, ()) for row in logits])
    torch.testing.assert_close(filtered.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_request_keeps_its_own_seed() -> None:
    """A given seed is the seed, also when it is 0."""
    for given in (0, 7, -3):
        assert seed_of(SimpleNamespace(sampling_params=SimpleNamespace(sampling_seed=given))) == given
