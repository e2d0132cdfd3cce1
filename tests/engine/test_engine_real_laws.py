"""Two samples of the real model's texts, plain and speculated with drawn drafts, have one law; mistakes are seen.

Compared are log probabilities of whole texts and counts of their first tokens. A law that is off by a quarter in
total variation where the first draft stands, as with a wrong recovered token here, moves the statistic of the counts
by 40 from its mean of 9: one such mistake in fifteen would be missed. The mean log probability must move by half.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from outrider.engine.attention import Segment
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.drafters.model_chain import ModelChainDrafter
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import GenerateRequest
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.noise import Coins, Noise
from outrider.speculation.outcome import likelihood_ratio
from outrider.speculation.proposal import Proposal, SampledChain
from outrider.speculation.target import SamplingLaw, Target
from outrider.speculation.verify import Rule, Verified

#: Its next token is nearly certain, so that all texts are drafted from one place on, where the model has ten choices.
TEXT = "My friend likes to play many games, but there is one which he likes best of"
LAW = SamplingLaw(0.8, 12, 0.95)
NUM_PLAIN, NUM_TOKENS, K = 320, 4, 2
ALPHA = 1e-3
pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]
#: Layers without which the target drafts: about half of its drafts are accepted.
SKIP = (9, 12, 15, 18, 21)
MIN_CELL = 10


class Ruled(Engine):
    """An engine whose rule can be changed."""

    rule: Rule | None = None

    def _rule(self, request: GenerateRequest) -> Rule:
        return self.rule or super()._rule(request)


class Recalled:
    """The target without some layers, as a forward pass of one sequence; texts begin alike, so each is read once."""

    def __init__(self, model: LlamaModel, num_prompt: int) -> None:
        self._forward = partial(model.forward, skip=frozenset(SKIP))
        self._cache, self._num_prompt = model.new_cache(num_prompt + NUM_TOKENS), num_prompt
        self._read: dict[SequenceCache, list[int]] = {}
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def __call__(self, segments: list[Segment]) -> torch.Tensor:
        (segment,) = segments
        read = self._read.setdefault(segment.cache, [])
        read[segment.cache.length :] = segment.token_ids
        segment.cache.extend(len(segment.token_ids))
        text = tuple(read)
        if text not in self._known:
            self._cache.truncate(min(self._cache.length, self._num_prompt))
            self._known[text] = self._forward([Segment(self._cache, text[self._cache.length :], 1)])
        return self._known[text]


class Overconfident(ModelChainDrafter):
    """Wrong: hands out its likeliest token as one that it has drawn."""

    def _draw(self, logits: torch.Tensor, noise: Noise, depth: int) -> tuple[int, torch.Tensor]:
        probs = super()._draw(logits, noise, depth)[1]
        return int(probs.argmax()), probs


def recovers_from_the_target(target: Target, coins: Coins, proposal: Proposal) -> Verified:
    """Wrong: draws the recovered token from the target's law, not from what the draft leaves of it."""
    tokens = proposal.token_ids
    for i, token in enumerate(tokens if isinstance(proposal, SampledChain) else ()):
        probs = target.probs(i, tokens[:i])
        if not coins.accept(min(1.0, likelihood_ratio(probs, proposal.draft_probs[i], token))):
            return Verified((*tokens[:i], coins.draw(probs)), tuple(range(i)))
    return Verified((*tokens, coins.draw(target.probs(len(tokens), tokens))), tuple(range(len(tokens))))


@dataclass(frozen=True)
class Texts:
    """One arm's texts, and of each the sum of its tokens' log probabilities."""

    tokens: list[tuple[int, ...]]
    logprobs: list[float]
    num_accepted: int


class Arms:
    """The engine, what drafts for it, and its plain texts."""

    def __init__(self, folder: Path) -> None:
        limits = EngineLimits(max_running=64, max_total_tokens=8192, context_length=64, max_prefill_rows=2048)
        self.engine = Ruled(folder, limits)
        self._prompt = tuple(self.engine.tokenizer.encode(TEXT))
        self._forward = Recalled(self.engine.model, len(self._prompt))
        self._memory = DraftMemory(self.engine.model, 64 * 64)
        self.sample(range(1))  # from now on the prompt is in the cache
        self.plain = self.sample(range(NUM_PLAIN))

    def sample(self, seeds: range, drafter: type[ModelChainDrafter] | None = None, rule: Rule | None = None) -> Texts:
        """A text of each seed; plain without a drafter."""
        vocab_size = self.engine.model.config.vocab_size
        self.engine.rule = rule
        for seed in seeds:
            plan = Plan("draft_model", K) if drafter else PLAN_OFF
            one = GenerateRequest(
                str(seed), self._prompt, LAW, NUM_TOKENS, plan, seed, num_top_logprobs=0, is_seeded=False
            )
            made = drafter and partial(
                drafter, self._forward, self._memory, one.capacity, one.prompt_ids, LAW, one.noise_at, vocab_size
            )
            self.engine.add(one, made and GuardedDrafter(made, vocab_size))
        tokens: dict[str, tuple[int, ...]] = {str(seed): () for seed in seeds}
        logprobs = dict.fromkeys(tokens, 0.0)
        num_accepted = 0
        while self.engine.has_work:
            for output in self.engine.step():
                assert output.num_drafter_failures == 0
                tokens[output.rid] += output.token_ids
                logprobs[output.rid] += sum(token.logprob for token in output.logprobs)
                num_accepted += output.stats.num_accepted if output.stats else 0
        return Texts(list(tokens.values()), list(logprobs.values()), num_accepted)


@pytest.fixture(scope="module")
def arms(model_folder: Path) -> Arms:
    return Arms(model_folder)


def p_value(one: Texts, other: Texts) -> float:
    """Of both having one law: the smallest of three tests, times three."""
    means = stats.ttest_ind(one.logprobs, other.logprobs, equal_var=False)
    return 3 * min(float(means.pvalue), _same_counts(one, other, 2), _same_counts(one, other, 3))


def _same_counts(one: Texts, other: Texts, size: int) -> float:
    """P value of a G-test of the texts' first `size` tokens; those that are rare in both are counted together."""
    counts = [Counter(text[:size] for text in texts.tokens) for texts in (one, other)]
    common = [cell for cell, count in (counts[0] + counts[1]).items() if count >= MIN_CELL]
    table = [[*(c[cell] for cell in common), c.total() - sum(c[cell] for cell in common)] for c in counts]
    filled = np.array(table)[:, np.sum(table, axis=0) > 0]
    return float(stats.chi2_contingency(filled, lambda_="log-likelihood").pvalue)


def test_speculated_texts_have_the_law_of_plain_ones(arms: Arms) -> None:
    """Block verification of chains that the model draws without some of its layers."""
    texts = arms.sample(range(1000, 1200), ModelChainDrafter)
    assert p_value(arms.plain, texts) > ALPHA
    assert 0.1 < texts.num_accepted / len(texts.tokens) < 0.9 * K


def test_a_wrong_rule_is_caught(arms: Arms) -> None:
    """A recovered token of the wrong law."""
    texts = arms.sample(range(2000, 2280), ModelChainDrafter, recovers_from_the_target)
    assert p_value(arms.plain, texts) < ALPHA


def test_a_wrong_drafter_is_caught(arms: Arms) -> None:
    """A likeliest token that is passed off as a drawn one."""
    assert p_value(arms.plain, arms.sample(range(3000, 3060), Overconfident)) < ALPHA
