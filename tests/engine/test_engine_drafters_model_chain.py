"""Chains drafted by a model: the cache follows the text, greedy drafts are its argmax, sampled ones have its law."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from markov import VOCAB, chain_law
from outrider.engine.attention import Segment
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.drafters.model_chain import MAX_CATCH_UP, ModelChainDrafter
from outrider.engine.kv_cache import BLOCK_SIZE, SequenceCache, blocks_for
from outrider.engine.model import LlamaModel
from outrider.speculation.noise import Noise
from outrider.speculation.proposal import PointMass, SampledChain
from outrider.speculation.target import SamplingLaw, Target
from random_llama import write_random_llama

PROMPT = [5, 9, 2, 31, 8, 60, 17]
GREEDY = SamplingLaw(0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LlamaModel:
    folder = tmp_path_factory.mktemp("llama")
    write_random_llama(folder, num_layers=2)
    return LlamaModel(folder)


def drafter(model: LlamaModel, prompt: list[int], law: SamplingLaw, capacity: int = 64, seed: int = 0):
    def noise_at(position: int) -> Noise:
        return Noise(seed, position, is_seeded=False)

    memory = DraftMemory(model, blocks_for(capacity) * BLOCK_SIZE)
    return ModelChainDrafter(model.forward, memory, capacity, prompt, law, noise_at, VOCAB)


def greedy_continuation(model: LlamaModel, tokens: list[int], k: int) -> tuple[int, ...]:
    """Without any cache: the whole text is read again for every token."""
    text = list(tokens)
    for _ in range(k):
        cache = SequenceCache(model.config, len(text))
        text.append(int(model.forward([Segment(cache, tuple(text), 1)]).argmax()))
    return tuple(text[len(tokens) :])


@pytest.mark.parametrize("num_kept", [0, 1, 2, 3, 4])
def test_drafts_are_the_models_own_whatever_was_accepted(model: LlamaModel, num_kept: int) -> None:
    """After every mix of accepted and other tokens, the next drafts are those of a model that reads the text anew."""
    drafting = drafter(model, PROMPT, GREEDY)
    text = list(PROMPT)
    for other in (1, 2, 3):
        draft = drafting.propose(4)
        assert draft == PointMass(greedy_continuation(model, text, 4))
        committed = [*draft.token_ids[:num_kept], other]
        for token in committed:
            drafting.observe(token)
        text += committed
    assert drafting.propose(2) == PointMass(greedy_continuation(model, text, 2))
    assert drafting.propose(3) == PointMass(greedy_continuation(model, text, 3))


def test_a_long_prompt_is_read_over_several_steps(model: LlamaModel) -> None:
    """No single proposal reads more than a bounded number of rows; until then there are no drafts."""
    prompt = [(7 * i) % VOCAB for i in range(MAX_CATCH_UP + 40)]
    drafting = drafter(model, prompt, GREEDY, capacity=MAX_CATCH_UP + 60)
    assert len(drafting.propose(2)) == 0
    assert drafting.propose(2) == PointMass(greedy_continuation(model, prompt, 2))


def test_a_text_longer_than_the_draft_models_context_is_not_drafted(model: LlamaModel) -> None:
    """Drafts end where the cache does."""
    drafting = drafter(model, PROMPT, GREEDY, capacity=len(PROMPT) + 2)
    assert len(drafting.propose(4)) == 2
    drafting.observe(1)
    drafting.observe(1)
    assert len(drafting.propose(4)) == 0


def test_a_sampled_chain_carries_the_law_of_each_token(model: LlamaModel) -> None:
    """Row i is the model's law after the text and the tokens before, under the request's temperature and filters."""
    law = SamplingLaw(0.7, top_k=5)
    chain = drafter(model, PROMPT, law).propose(3)
    assert isinstance(chain, SampledChain)
    assert chain.draft_probs.shape == (3, VOCAB) and chain.draft_probs.dtype == torch.float64
    text = (*PROMPT, *chain.token_ids[:-1])
    logits = model.forward([Segment(SequenceCache(model.config, 16), text, 3)])
    expected = torch.stack([Target(logits, law).probs(row, ()) for row in range(3)])
    torch.testing.assert_close(chain.draft_probs, expected, atol=1e-4, rtol=1e-3)
    assert all(chain.draft_probs[i, token] > 0 for i, token in enumerate(chain.token_ids))


def test_sampled_chains_are_drawn_from_their_law(toy_folder: Path, chain: np.ndarray) -> None:
    """G-test of two drafted tokens against the chain's closed form; the same noise draws the same tokens."""
    model, law = LlamaModel(toy_folder), chain_law(chain, 1.2)
    num_samples = 800
    counts = Counter(
        drafter(model, [1, 2], SamplingLaw(1.2), seed=s).propose(2).token_ids for s in range(num_samples)
    )
    cells = [(a, b) for a in range(4) for b in range(4)]
    expected = [law[2, a] * law[a, b] * num_samples for a, b in cells]
    test = stats.power_divergence([counts[cell] for cell in cells], expected, lambda_="log-likelihood")
    assert test.pvalue > 1e-3, test
    draws = [drafter(model, [1, 2], SamplingLaw(1.2), seed=s).propose(16).token_ids for s in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("vocab_size", [VOCAB - 20, VOCAB + 20])
def test_the_law_has_the_targets_vocabulary(model: LlamaModel, vocab_size: int) -> None:
    """A head padded to another size is cut or filled up with tokens that are never drawn."""

    def noise_at(position: int) -> Noise:
        return Noise(0, position, is_seeded=True)

    memory = DraftMemory(model, 32)
    one = ModelChainDrafter(model.forward, memory, 32, PROMPT, SamplingLaw(1.0), noise_at, vocab_size)
    chain = one.propose(4)
    assert isinstance(chain, SampledChain) and chain.draft_probs.shape == (4, vocab_size)
    torch.testing.assert_close(chain.draft_probs.sum(dim=1), torch.ones(4, dtype=torch.float64))
    assert not chain.draft_probs[:, VOCAB:].any()
