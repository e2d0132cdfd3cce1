"""The joint law of tokens whose drafts were drawn, where everything meets: filters, penalties, bias and grammar.

Without a seed, drawn drafts are accepted by rejection, which needs the very law that each was drawn from; texts then
differ from plain ones, so that only their law tells whether they are right.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from markov import ALPHABET, EOS, VOCAB
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.sequence import GenerateRequest
from outrider.policy.plan import Plan
from outrider.speculation.target import History, SamplingLaw, Target
from random_heads import write_toy_pair

LAW = SamplingLaw(1.1, 3, 0.97, 0.02, 1.3, 0.4, 0.3, ((2, 0.8),))
PROMPT = tuple((i * i + i // 3) % 4 for i in range(18))
NUM_SAMPLES, NUM_TOKENS = 500, 3
#: A grammar, and what it allows of the first tokens.
PATTERN, ALLOWED = "[ABD]{2}[A-C][A-D]{9}", ("ABD", "ABD", "ABC")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, chain: np.ndarray) -> Path:
    folder = tmp_path_factory.mktemp("laws")
    write_toy_pair(folder, chain)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    limits = EngineLimits(
        max_running=64, max_total_tokens=4096, context_length=64, max_prefill_rows=2048, max_step_rows=2048
    )
    options = DraftOptions(folder / "draft", eagle=(folder / "eagle",), medusa=folder / "medusa")
    return Engine(folder / "target", limits, options)


def joint_law(chain: np.ndarray, has_grammar: bool) -> dict[tuple[int, ...], float]:
    """Of the first tokens, in closed form: each row of the chain under the request's law, one token after another."""
    # The very logits, in fp16 as the checkpoint has them: penalties look at their signs.
    rows = torch.tensor((chain / np.sqrt(VOCAB)).astype(np.float16).astype(np.float64) * np.sqrt(VOCAB))
    found = {}
    for tokens in itertools.product(range(4), repeat=NUM_TOKENS):
        chance, before = 1.0, PROMPT[-1]
        for i, token in enumerate(tokens):
            masks = None
            if has_grammar:
                masks = torch.zeros(1, VOCAB, dtype=torch.bool)
                masks[0, [ALPHABET.index(letter) for letter in ALLOWED[i]]] = True
            target = Target(rows[before].unsqueeze(0), LAW, History(PROMPT, tokens[:i]), masks)
            chance *= float(target.probs(0, ())[token])
            before = token
        found[tokens] = chance
    return found


@pytest.mark.parametrize(
    ("drafter", "has_grammar"),
    [("draft_model", False), ("eagle2", True), ("medusa", False), ("hybrid", True)],
)
def test_the_joint_law_under_everything(engine: Engine, chain: np.ndarray, drafter: str, has_grammar: bool) -> None:
    """G-test of the first tokens; bounds hold for all cases together. Drafts are both accepted and rejected."""
    grammar = engine.grammars.compile("regex", PATTERN) if has_grammar else None
    for seed in range(NUM_SAMPLES):
        engine.add(GenerateRequest(
            str(seed), PROMPT, LAW, 5, Plan(drafter, 3), seed, (), frozenset({EOS}), grammar=grammar, is_seeded=False,
        ))  # fmt: skip
    answers: dict[str, tuple[int, ...]] = {}
    num_proposed = num_accepted = 0
    while engine.has_work:
        for output in engine.step():
            answers[output.rid] = answers.get(output.rid, ()) + output.token_ids
            assert output.num_drafter_failures == 0
            if output.stats is not None:
                num_proposed += output.stats.num_proposed or 0
                num_accepted += output.stats.num_accepted
    law = joint_law(chain, has_grammar)
    counts = Counter(answer[:NUM_TOKENS] for answer in answers.values())
    assert sum(counts[cell] for cell, chance in law.items() if chance > 0) == NUM_SAMPLES, "one that the law excludes"
    # Of cells with few expected the test knows nothing, so they are one.
    common = [cell for cell, chance in law.items() if chance * NUM_SAMPLES > 8]
    observed, expected = [counts[cell] for cell in common], [law[cell] * NUM_SAMPLES for cell in common]
    observed.append(NUM_SAMPLES - sum(observed))
    expected.append(NUM_SAMPLES - sum(expected))
    test = stats.power_divergence(observed, expected, lambda_="log-likelihood")
    assert test.pvalue > 1e-3 / 4, (test, observed, expected)
    assert 0.02 * num_proposed < num_accepted < 0.98 * num_proposed
