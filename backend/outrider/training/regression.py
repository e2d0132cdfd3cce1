"""Where an EAGLE head begins: the linear guess of the next state that is best on a part of the texts."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F

from outrider.training.features import Window

#: Rows that are enough for its few parameters, and how far each is held towards zero.
MAX_ROWS, RIDGE = 100_000, 1e-3


def fit_next_state(windows: Iterable[Window], embedding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ridge regression of an answer's states on the token there and the state before: weight [h, 2 h] and bias [h]
    on the CPU, of embedding and state side by side."""
    hidden = embedding.shape[1]
    inner = torch.zeros(2 * hidden + 1, 2 * hidden + 1, dtype=torch.double)
    outer = torch.zeros(2 * hidden + 1, hidden, dtype=torch.double)
    num_rows = 0
    for window in windows:
        first = max(1, window.num_prompt - 1)
        states, tokens = window.states[:, -1].float(), window.token_ids[first:]
        embedded = F.embedding(tokens.to(embedding.device), embedding).cpu()
        known = torch.cat([embedded, states[first - 1 : -1], torch.ones(len(tokens), 1)], dim=1)
        inner += (known.T @ known).double()
        outer += (known.T @ states[first:]).double()
        num_rows += len(tokens)
        if num_rows >= MAX_ROWS:
            break
    # Embeddings are much smaller than states, so that each is held by its own size.
    size = inner.diagonal().clamp(min=1e-6 * float(inner.diagonal().mean()))
    found = torch.linalg.solve(inner + RIDGE * size.diag(), outer).float()
    return found[:-1].T.contiguous(), found[-1]
