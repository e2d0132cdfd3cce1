"""The target law against a plain reference, its corners, and penalties along a draft's path."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from enumeration import (
    Branches,
    Draft,
    Prefix,
    Rule,
    World,
    emitted_law,
    largest_error,
    plain_law,
    point_mass,
    random_rows,
    whole_prefix,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.speculation.chain import token_rejection
from outrider.speculation.noise import Choice, Noise
from outrider.speculation.outcome import Verified
from outrider.speculation.target import ROUNDING, History, SamplingLaw, Target
from outrider.speculation.verify import verify


def reference(logits: np.ndarray, law: SamplingLaw, prompt: tuple[int, ...] = (), output: Prefix = ()) -> np.ndarray:
    """One row's law, written down token by token as its definition."""
    logits = logits.copy()
    times = Counter(output)
    for token in range(len(logits)):
        if token in prompt or token in output:
            logits[token] *= 1 / law.repetition_penalty if logits[token] > 0 else law.repetition_penalty
        logits[token] -= law.frequency_penalty * times[token] + law.presence_penalty * (token in times)
    for token, bias in law.logit_bias:
        logits[token] += bias
    weights = np.exp((logits - logits.max()) / law.temperature)
    probs = weights / weights.sum()
    kept = np.zeros(len(probs), dtype=bool)
    mass = 0.0
    for rank, token in enumerate(np.argsort(-probs, kind="stable")):
        in_k = law.top_k == 0 or rank < law.top_k
        kept[token] = in_k and mass < law.top_p and probs[token] >= law.min_p * probs.max()
        mass += probs[token]
    return np.where(kept, probs, 0) / probs[kept].sum()


laws = st.builds(
    SamplingLaw,
    temperature=st.floats(0.05, 2.0),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    repetition_penalty=st.floats(0.5, 2.0),
    frequency_penalty=st.floats(-2.0, 2.0),
    presence_penalty=st.floats(-2.0, 2.0),
    logit_bias=st.sampled_from([(), ((3, 1.5),), ((0, -100.0), (9, 2.0))]),
)
PENALISED = SamplingLaw(0.9, repetition_penalty=1.4, frequency_penalty=0.4, presence_penalty=-0.3)


@settings(max_examples=100, deadline=None)
@given(law=laws, seed=st.integers(0, 10_000))
def test_all_parts_of_the_law_apply_together(law: SamplingLaw, seed: int) -> None:
    """The law equals the definition's, for every combination of penalties, bias and filters, behind a path too."""
    logits = np.random.default_rng(seed).normal(size=(2, 10)) * 2
    target = Target(torch.tensor(logits), law, History((1, 2, 2, 7), (2, 5, 5)))
    np.testing.assert_allclose(
        target.probs(0, ()).numpy(), reference(logits[0], law, (1, 2, 7), (2, 5, 5)), atol=1e-12
    )
    behind = reference(logits[1], law, (1, 2, 7), (2, 5, 5, 8, 5))
    np.testing.assert_allclose(target.probs(1, (8, 5)).numpy(), behind, atol=1e-12)
    np.testing.assert_allclose(target.probs(0, ()).sum().item(), 1.0, atol=1e-12)


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.9999])
def test_a_flat_law_over_a_large_vocabulary_keeps_enough(top_p: float) -> None:
    """When the partial sort does not reach the asked mass, the whole vocabulary is sorted."""
    logits = np.random.default_rng(0).normal(size=5000) * 0.01
    law = SamplingLaw(1.0, top_p=top_p)
    found = Target(torch.tensor(logits[None]), law).probs(0, ()).numpy()
    np.testing.assert_allclose(found, reference(logits, law), atol=1e-12)


def test_greedy_is_the_argmax_of_the_processed_logits() -> None:
    """Temperature 0 puts all mass on the largest logit, after penalties, bias and mask."""
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    assert Target(logits, SamplingLaw(0.0)).probs(0, ()).tolist() == [0, 1, 0]
    assert Target(logits, SamplingLaw(0.0, logit_bias=((0, 9.0),))).probs(0, ()).tolist() == [1, 0, 0]
    masks = torch.tensor([[True, False, True]])
    assert Target(logits, SamplingLaw(0.0), masks=masks).probs(0, ()).tolist() == [0, 0, 1]
    penalised = SamplingLaw(0.0, presence_penalty=2.5)
    assert Target(logits, penalised, History((1,), ())).probs(0, ()).tolist() == [0, 1, 0], "the prompt counts not"
    assert Target(logits, penalised, History((), (1,))).probs(0, ()).tolist() == [0, 0, 1]


def test_a_mask_restricts_the_law() -> None:
    """What the grammar forbids has probability zero, the rest keeps its proportions, also under a filter."""
    logits = torch.tensor([[1.0, 2.0, 3.0, 0.0]])
    masks = torch.tensor([[True, True, False, True]])
    free, masked = (Target(logits, SamplingLaw(), masks=m).probs(0, ()) for m in (None, masks))
    np.testing.assert_allclose(masked, free * masks[0] / (free * masks[0]).sum(), atol=1e-12)
    assert Target(logits, SamplingLaw(top_k=1), masks=masks).probs(0, ()).tolist() == [0, 1, 0, 0]


def test_a_row_where_nothing_is_allowed_is_refused() -> None:
    """It has no law; reading it is a mistake."""
    with pytest.raises(ValueError, match="allows no token at row 0"):
        Target(torch.zeros(1, 3), SamplingLaw(), masks=torch.zeros(1, 3, dtype=torch.bool)).probs(0, ())


def test_penalties_need_the_history() -> None:
    """Leaving it out is an error, not an empty history."""
    with pytest.raises(ValueError, match="penalties need the history"):
        Target(torch.zeros(1, 3), SamplingLaw(presence_penalty=0.1))


def test_the_model_s_logits_stay_as_they_are() -> None:
    """The rows belong to the engine; log probabilities are read from them later."""
    logits = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    law = SamplingLaw(0.7, 3, 0.9, 0.01, 1.3, 0.5, 0.5, ((2, 4.0),))
    target = Target(logits, law, History((1,), (2,)), torch.tensor([[True, True, True, False, True, True]] * 2))
    target.probs(1, (3,))
    assert torch.equal(logits, before)


def test_a_tiny_temperature_does_not_overflow() -> None:
    """Large logits over a tiny temperature stay finite."""
    assert Target(torch.tensor([[1e4, 0.0, -1e4]]), SamplingLaw(1e-6)).probs(0, ()).tolist() == [1.0, 0.0, 0.0]


def choice_of(logits: list[float], law: SamplingLaw, seed: int = 0) -> Choice:
    return Target(torch.tensor([logits], dtype=torch.float64), law).choose(0, (), Noise(seed, 0, True))


def test_greedy_near_ties() -> None:
    """Two best logits that are closer than rounding can be trusted, exact ties too; others do not matter."""
    greedy = SamplingLaw(0.0)
    assert choice_of([1.0, 1.0, 0.0], greedy).is_near_tie
    assert choice_of([1.0, 1.0 - ROUNDING / 2, 0.0], greedy).is_near_tie
    assert not choice_of([1.0, 1.0 - 2 * ROUNDING, 0.5, 0.5], greedy).is_near_tie


@pytest.mark.parametrize(("penalty", "sign"), [(2.0, -1.0), (0.5, 1.0)])
def test_a_penalty_enlarges_what_rounding_may_do(penalty: float, sign: float) -> None:
    """Logits that rounding could swap before they are multiplied are a near tie behind it, twice as far apart."""
    greedy, history = SamplingLaw(0.0, repetition_penalty=penalty), History((0, 1), ())
    for distance, is_near_tie in ((0.75, True), (1.5, False)):
        logits = torch.tensor([[sign, sign - distance * ROUNDING, -9.0]], dtype=torch.float64)
        assert Target(logits, greedy, history).choose(0, (), Noise(0, 0, True)) == Choice(0, is_near_tie)


@pytest.mark.parametrize("law", [SamplingLaw(1.0, min_p=1.0), SamplingLaw(0.001, top_p=0.4)], ids=["min-p", "top-p"])
def test_the_likeliest_token_is_never_in_doubt(law: SamplingLaw) -> None:
    """However tight a filter: it always stays, so that no rounding can take it away."""
    assert choice_of([10.0, 0.0, 0.0], law) == Choice(0)


@settings(max_examples=60, deadline=None)
@given(law=laws.filter(lambda law: not law.is_greedy and law.temperature > 0.3), seed=st.integers(0, 10_000))
def test_rounding_changes_a_token_only_at_a_near_tie(law: SamplingLaw, seed: int) -> None:
    """Logits moved at random within the tolerance, under any filters: another token is announced beforehand."""
    rng = np.random.default_rng(seed)
    law = replace(law, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0)
    for position in range(20):
        logits = rng.choice([0.0, 1.0, 1.0 + ROUNDING / 3, 2.0, 2.0 - ROUNDING / 3], size=10)
        moved = logits + rng.uniform(-ROUNDING / 2, ROUNDING / 2, size=10)
        first, second = choice_of(logits.tolist(), law, position), choice_of(moved.tolist(), law, position)
        assert first.is_near_tie or first.token_id == second.token_id


WORLD = World(random_rows(1), random_rows(2))
DRAFTS = [WORLD.sampled_chain(lambda _: 2), WORLD.sampled_tree(2), WORLD.top_tree(2, 1), point_mass(2, 1)]


def penalty_error(draft: Draft, rule: Rule, kind: type[Target] = Target) -> float:
    """Error of the whole algorithm under penalties, whose law depends on all of the prefix."""

    def target(states: list[int], prefix: Prefix, kind: type[Target]) -> Target:
        return kind(WORLD.logits[states], PENALISED, History(prefix[:1], prefix[1:]))

    def step(coins: Branches, prefix: Prefix) -> Verified:
        proposal = draft(coins, prefix)
        return rule(target([prefix[-1], *proposal.token_ids], prefix, kind), coins, proposal)

    expected = plain_law(lambda prefix: target([prefix[-1]], prefix, Target).probs(0, ()))
    return largest_error(expected, emitted_law(step, whole_prefix))


@pytest.mark.parametrize("draft", DRAFTS, ids=["chain", "tree", "top-k tree", "point mass"])
def test_penalties_along_the_path_are_exact(draft: Draft) -> None:
    """Each row's penalties count the drafts that lead to it, as plain decoding would by then."""
    assert penalty_error(draft, verify) < 1e-12


class StalePenalties(Target):
    """A mistake that somebody has shipped: one set of penalties, from before the step, for all rows."""

    def probs(self, row: int, path: tuple[int, ...]) -> torch.Tensor:
        return super().probs(row, ())


@pytest.mark.parametrize("rule", [verify, token_rejection])
def test_stale_penalties_are_caught(rule: Rule) -> None:
    """Not counting the path shows as an error far above the tolerance."""
    assert penalty_error(DRAFTS[0], rule, StalePenalties) > 1e-3
