"""A head begins with the best linear guess of the next state."""

from __future__ import annotations

import torch

from outrider.training.corpus import Text
from outrider.training.features import Window
from outrider.training.regression import fit_next_state

HIDDEN, VOCAB = 6, 60


def test_a_linear_rule_is_found() -> None:
    """States that follow from token and state before by a matrix, and noise, give that matrix, from answers alone."""
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    rule = 0.15 * torch.randn(HIDDEN, 2 * HIDDEN, generator=generator)
    windows = []
    for i in range(40):
        tokens = torch.randint(VOCAB, (200,), generator=generator)
        # What stands in the prompt follows no rule.
        states = [5 * torch.randn(HIDDEN, generator=generator) for _ in range(10)]
        for token in tokens[10:]:
            noise = 0.5 * torch.randn(HIDDEN, generator=generator)
            states.append(rule @ torch.cat([embedding[token], states[-1]]) + 2.0 + noise)
        text = Text(i, "chat", 0.0, "?", (), ())
        windows.append(Window(tokens, torch.stack(states).unsqueeze(1).half(), 10, text))
    weight, bias = fit_next_state(windows, embedding)
    torch.testing.assert_close(weight, rule, atol=0.06, rtol=0.0)
    torch.testing.assert_close(bias, torch.full((HIDDEN,), 2.0), atol=0.15, rtol=0.0)
