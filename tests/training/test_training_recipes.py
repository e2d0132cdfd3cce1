"""What is reported of a head: agreement and overlap against the definition, written down row by row."""

from __future__ import annotations

import pytest
import torch

from outrider.training.features import Batch
from outrider.training.medusa import MedusaRecipe
from outrider.training.recipes import TEMPERATURES, Output, score

VOCAB, HIDDEN, COUNT = 12, 6, 40


@pytest.mark.parametrize("token_ids", [range(VOCAB), range(1, VOCAB, 2), (3, 4)], ids=["all", "half", "few"])
def test_the_overlap_is_that_of_the_whole_laws(token_ids: range) -> None:
    """At each temperature sum min(target, draft) over all tokens, of which many cannot be drafted, the likeliest
    too; at 0 how often the likeliest draft token is the target's likeliest of all."""
    generator = torch.Generator().manual_seed(3)
    matrix = 2 * torch.randn(VOCAB, HIDDEN, generator=generator)
    draft_ids = torch.tensor(list(token_ids))
    recipe = MedusaRecipe(Output(matrix, draft_ids, matrix), num_heads=2)
    states = torch.randn(1, COUNT, 1, HIDDEN, generator=generator)
    everywhere = torch.ones(1, COUNT, dtype=torch.bool)
    tokens = torch.zeros(1, COUNT, dtype=torch.long)
    scores = score(recipe, [Batch(tokens, states, everywhere, everywhere)])
    logits = states[0, :, 0] @ matrix.T
    for head in range(2):
        # A block of zeros gives the state itself, and head i guesses the token after the state i + 1 later.
        drafts, targets = logits[: COUNT - 2 - head], logits[1 + head : COUNT - 1]
        best = draft_ids[drafts[:, draft_ids].argmax(dim=-1)]
        right = float((best == targets.argmax(dim=-1)).float().mean())
        assert scores.agreement[head] == pytest.approx(right) == scores.overlap[0.0][head]
        for temperature in TEMPERATURES[1:]:
            draft = torch.zeros(drafts.shape)
            draft[:, draft_ids] = (drafts[:, draft_ids] / temperature).softmax(dim=-1)
            overlap = torch.minimum(draft, (targets / temperature).softmax(dim=-1)).sum(dim=-1).mean()
            assert scores.overlap[temperature][head] == pytest.approx(float(overlap), abs=1e-6)
