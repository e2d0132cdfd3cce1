"""Drawn drafts of heads: they have the laws that they carry, and texts have the target's, but for the lossy mode."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from markov import chain_law
from outrider.engine.attention import Segment
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.drafters.eagle import EagleDrafter, EagleSettings
from outrider.engine.drafters.eagle_head import EagleHead
from outrider.engine.drafters.medusa import MedusaDrafter, MedusaHeads
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import GenerateRequest
from outrider.engine.taps import Taps
from outrider.policy.plan import Plan
from outrider.speculation.proposal import SampledChain
from outrider.speculation.target import SamplingLaw

PROMPT = tuple(itertools.chain.from_iterable(itertools.product(range(4), repeat=2)))
ROOMY = EngineLimits(
    max_running=64, max_total_tokens=8192, context_length=128, max_prefill_rows=2048, max_step_rows=4096
)


def joint_law_p(engine: Engine, chain: np.ndarray, drafter: str, temperature: float) -> tuple[float, float]:
    """p-value of a G-test of two successive tokens, and drafts accepted a step; no request has a seed."""
    num_samples, counts, accepted, steps = 400, Counter[tuple[int, ...]](), 0, 0
    for seed in range(num_samples):
        law = SamplingLaw(temperature)
        engine.add(GenerateRequest(str(seed), PROMPT, law, 4, Plan(drafter, 4), seed, is_seeded=False))
    tokens: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        for output in engine.step():
            tokens[output.rid] = tokens.get(output.rid, ()) + output.token_ids
            assert output.num_drafter_failures == 0
            if output.stats is not None:
                accepted += output.stats.num_accepted
                steps += output.stats.num_verify_steps
    counts.update(answer[1:3] for answer in tokens.values())
    law_at = chain_law(chain, temperature)
    cells = list(itertools.product(range(4), repeat=2))
    start = law_at[PROMPT[-1], :4]
    expected = [float(start @ law_at[:4, a]) * law_at[a, b] * num_samples for a, b in cells]
    observed = [counts[cell] for cell in cells]
    assert sum(observed) == num_samples
    test = stats.power_divergence(observed, expected, lambda_="log-likelihood")
    return float(test.pvalue), accepted / steps


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_drawn_chains_have_the_laws_that_they_carry(toy_folder: Path, toy_heads: DraftOptions, kind: str) -> None:
    """Over the noise of many requests two tokens have the joint law of their rows, and the first draft of the next
    position is independent of the last one's. Rejection relies on it, and the texts' own law shows little of it."""
    target, text, num_samples = LlamaModel(toy_folder), (*PROMPT, 1, 2), 800
    folder = toy_heads.eagle[0].parent / kind
    medusa = MedusaHeads(folder, target) if kind == "medusa" else None
    head = None if medusa else EagleHead(folder, target)
    points = (medusa or head).points
    taps = Taps(points)
    target.forward([Segment(target.new_cache(len(text)), text, 1)], taps=taps)
    features = taps.features(points, range(len(text)))
    pairs, again, laws = Counter[tuple[int, ...]](), np.zeros((4, 4), dtype=int), dict[int, torch.Tensor]()
    for seed in range(num_samples):
        one = GenerateRequest("a", PROMPT, SamplingLaw(8.0), 400, Plan("eagle2", 7), seed, is_seeded=False)
        if medusa is not None:
            drafter = MedusaDrafter(medusa, one)
        else:
            drafter = EagleDrafter(head, DraftMemory(head, 1000), one, EagleSettings())
        drafter.observe(text[-2])
        drafter.observe_features(0, features[: len(PROMPT)])
        chain = drafter.propose(2)
        assert isinstance(chain, SampledChain)
        pairs[chain.token_ids] += 1
        laws[-1], laws[chain.token_ids[0]] = chain.draft_probs
        drafter.observe(text[-1])
        drafter.observe_features(len(PROMPT), features[len(PROMPT) : len(text) - 1])
        again[chain.token_ids[0], drafter.propose(1).token_ids[0]] += 1
        drafter.free()
    cells = [(a, b) for a in laws if a >= 0 for b in range(4)]
    expected = np.array([float(laws[-1][a] * laws[a][b]) * num_samples for a, b in cells])
    observed = np.array([pairs[cell] for cell in cells])
    common = expected > 5
    observed = [*observed[common], num_samples - observed[common].sum() + 1]
    expected = [*expected[common], num_samples - expected[common].sum() + 1]
    assert stats.power_divergence(observed, expected, lambda_="log-likelihood").pvalue > 1e-4, (observed, expected)
    seen = again[again.sum(axis=1) > 20][:, again.sum(axis=0) > 20]
    assert seen.shape >= (2, 2) and stats.chi2_contingency(seen).pvalue > 1e-4, again


@pytest.mark.parametrize("temperature", [0.5, 1.2], ids=["tree", "drawn"])
@pytest.mark.parametrize("drafter", ["eagle2", "eagle3", "medusa", "hybrid"])
def test_the_joint_law_of_tokens(
    toy_folder: Path, toy_heads: DraftOptions, chain: np.ndarray, drafter: str, temperature: float
) -> None:
    """Trees below a temperature, drawn chains from it on: the target's law, with drafts accepted and rejected."""
    engine = Engine(toy_folder, ROOMY, toy_heads)
    p_value, accepted = joint_law_p(engine, chain, drafter, temperature)
    assert p_value > 1e-3 / 8
    assert 0.02 < accepted < 1.9


def test_typical_acceptance_has_another_law(toy_folder: Path, toy_heads: DraftOptions, chain: np.ndarray) -> None:
    """The lossy mode is what it says; greedy requests and other drafters stay exact under it."""
    lossy = DraftOptions(eagle=toy_heads.eagle, medusa=toy_heads.medusa, is_lossy=True)
    engine = Engine(toy_folder, ROOMY, lossy)
    assert joint_law_p(engine, chain, "medusa", 1.2)[0] < 1e-4
    assert joint_law_p(engine, chain, "eagle2", 1.2)[0] > 1e-4
