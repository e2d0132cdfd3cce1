"""The target law against a plain reference, and its corners."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.speculation.target import SamplingLaw, choose, invert, target_probs


def reference(logits: np.ndarray, law: SamplingLaw) -> np.ndarray:
    """Joint top-k, top-p and min-p of one row, written down as their definitions."""
    weights = np.exp((logits - logits.max()) / law.temperature)
    probs = weights / weights.sum()
    order = np.argsort(-probs, kind="stable")
    kept = np.zeros(len(probs), dtype=bool)
    mass = 0.0
    for rank, token in enumerate(order):
        in_k = law.top_k == 0 or rank < law.top_k
        in_p = mass < law.top_p
        in_min = probs[token] >= law.min_p * probs.max()
        kept[token] = in_k and in_p and in_min
        mass += probs[token]
    return np.where(kept, probs, 0) / probs[kept].sum()


laws = st.builds(
    SamplingLaw,
    temperature=st.floats(0.05, 2.0),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
)


@settings(max_examples=200, deadline=None)
@given(law=laws, seed=st.integers(0, 10_000))
def test_filters_apply_jointly(law: SamplingLaw, seed: int) -> None:
    """The law equals the definition's, for every combination of filters."""
    logits = np.random.default_rng(seed).normal(size=(3, 10)) * 2
    found = target_probs(torch.tensor(logits), law).numpy()
    expected = np.stack([reference(row, law) for row in logits])
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.9999])
def test_a_flat_law_over_a_large_vocabulary_keeps_enough(top_p: float) -> None:
    """When the partial sort does not reach the asked mass, the whole vocabulary is sorted."""
    logits = np.random.default_rng(0).normal(size=5000) * 0.01
    law = SamplingLaw(1.0, top_p=top_p)
    np.testing.assert_allclose(
        target_probs(torch.tensor(logits[None]), law)[0].numpy(), reference(logits, law), atol=1e-12
    )


def test_greedy_is_the_argmax() -> None:
    """Temperature 0 puts all mass on the largest logit, and ignores the noise."""
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 1.0, 0.0]])
    law = SamplingLaw(0.0)
    assert target_probs(logits, law).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert choose(logits, law, torch.tensor([0.9, 0.9])).tolist() == [1, 0]


def test_a_tiny_temperature_does_not_overflow() -> None:
    """Large logits over a tiny temperature stay finite."""
    probs = target_probs(torch.tensor([[1e4, 0.0, -1e4]]), SamplingLaw(1e-6))
    assert probs.tolist() == [[1.0, 0.0, 0.0]]


@given(u=st.floats(0.0, 1.0, exclude_max=True))
def test_a_token_of_probability_zero_is_never_drawn(u: float) -> None:
    """Not at the edges of the unit interval either."""
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]], dtype=torch.float64)
    assert int(invert(probs, torch.tensor([u], dtype=torch.float64))) in (1, 3)
