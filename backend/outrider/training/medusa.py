"""Training of Medusa heads: residual blocks on the target's last state, each for one token further on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from outrider.engine.checkpoint import ModelConfig
from outrider.engine.drafters.medusa import MedusaCheckpoint, read_medusa, write_medusa
from outrider.training.features import Batch, Window
from outrider.training.recipes import Depth, Output, Scores, copy_parameters

#: Weight of each head's loss against the one before (arXiv 2401.10774).
HEAD_DECAY = 0.8


class MedusaRecipe:
    """Head i guesses token t + 2 + i from the state at t by cross-entropy; all share the target's output matrix."""

    def __init__(self, output: Output, num_heads: int) -> None:
        hidden, device = output.rows.shape[1], output.rows.device
        self._output = output
        self._num_heads = num_heads
        self._tensors = {}
        for i in range(num_heads):
            # Zero blocks at first: a head is then the target's own for the next token.
            self._tensors[f"{i}.0.linear.weight"] = torch.zeros(hidden, hidden, device=device, requires_grad=True)
            self._tensors[f"{i}.0.linear.bias"] = torch.zeros(hidden, device=device, requires_grad=True)

    @property
    def columns(self) -> tuple[int, ...]:
        """See `Recipe`."""
        return (3,)

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """See `Recipe`."""
        return self._tensors

    def begin_with(self, folder: Path, target: ModelConfig) -> None:
        """See `Recipe`."""
        copy_parameters(folder, read_medusa(folder, target).tensors, self._tensors)

    def prepare(self, windows: Iterable[Window]) -> None:
        """Nothing: its blocks are not linear."""

    def loss(self, batch: Batch, seed: int, done: float) -> torch.Tensor:
        """Without noise, and the same all the time."""
        total = torch.zeros((), device=batch.states.device)
        for i in range(self._num_heads):
            keep = self._keep(batch, i)
            labels = self._output.draft_id[batch.token_ids.roll(-2 - i, dims=1)[keep]]
            known = labels >= 0
            logits = self._logits(batch.states[:, :, -1][keep][known], i)
            total = total + HEAD_DECAY**i * F.cross_entropy(logits, labels[known])
        return total

    def depths(self, batch: Batch) -> list[Depth]:
        """See `Recipe`."""
        last, found = batch.states[:, :, -1], []
        for i in range(self._num_heads):
            keep = self._keep(batch, i) & batch.answer.roll(-2 - i, dims=1)
            goal = last.roll(-1 - i, dims=1)[keep]
            found.append(Depth(self._logits(last[keep], i), *self._output.teacher(goal)))
        return found

    def _keep(self, batch: Batch, head: int) -> torch.Tensor:
        """bool [B, n]: rows whose token for this head is there."""
        size, ahead = batch.mask.shape[1], 2 + head
        return batch.mask.roll(-ahead, dims=1) & (torch.arange(size, device=batch.mask.device) < size - ahead)

    def _logits(self, states: torch.Tensor, head: int) -> torch.Tensor:
        weight, bias = (self._tensors[f"{head}.0.linear.{name}"] for name in ("weight", "bias"))
        return (states + F.silu(F.linear(states, weight, bias))) @ self._output.rows.T

    def write(self, folder: Path, note: Mapping[str, Any], scores: Scores) -> None:
        """See `Recipe`."""
        tensors = {name: tensor.detach().cpu() for name, tensor in self._tensors.items()}
        # Beyond what was evaluated a head is taken to be as good as the last one that was.
        rows = [*scores.ranks, *[scores.ranks[-1]] * self._num_heads][: self._num_heads]
        heads = MedusaCheckpoint(tensors, self._output.token_ids.cpu(), tuple(rows))
        write_medusa(folder, heads, str(note.get("base_model", "")), note)
