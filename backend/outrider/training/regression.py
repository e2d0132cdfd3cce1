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
    # Sums of products of [token, state before, state, 1], from which all moments follow.
    sums = torch.zeros(3 * hidden + 1, 3 * hidden + 1, dtype=torch.double)
    for window in windows:
        first = max(1, window.num_prompt)
        states, tokens = window.states[:, -1].float(), window.token_ids[first:]
        embedded = F.embedding(tokens.to(embedding.device), embedding).cpu()
        rows = torch.cat([embedded, states[first - 1 : -1], states[first:], torch.ones(len(tokens), 1)], dim=1)
        sums += (rows.T @ rows).double()
        if sums[-1, -1] >= MAX_ROWS:
            break
    mean = sums[-1, :-1] / sums[-1, -1]
    moments = sums[:-1, :-1] / sums[-1, -1] - mean.outer(mean)
    known, goal = slice(0, 2 * hidden), slice(2 * hidden, None)
    inner = moments[known, known]
    # Each is held by its own spread: embeddings are much smaller than states.
    held = inner.diagonal().clamp(min=1e-6 * float(inner.diagonal().mean())).diag()
    weight = torch.linalg.solve(inner + RIDGE * held, moments[known, goal]).T
    return weight.float().contiguous(), (mean[goal] - weight @ mean[known]).float()
