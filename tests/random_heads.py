"""Heads with random weights for a small target: they draft something, now and then the right thing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from markov import write_ending_checkpoint
from outrider.engine.checkpoint import read_config
from outrider.engine.drafters.eagle_checkpoint import HeadCheckpoint, write_head
from outrider.engine.drafters.eagle_net import Kind, config_for
from outrider.engine.drafters.medusa import MedusaCheckpoint, usual_accuracy, write_medusa

NUM_MEDUSA = 3


def random_head(target: Path, kind: Kind, tokens: Iterable[int] | None = None, seed: int = 0) -> HeadCheckpoint:
    """Norms are ones, matrices small; the draft vocabulary is `tokens`, or all."""
    token_ids = None if tokens is None else torch.tensor(list(tokens))
    config = config_for(read_config(target), kind, None if token_ids is None else len(token_ids))
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 and "norm" in name
        else (0.2 * torch.randn(shape, generator=generator)).half().float()
        for name, shape in config.shapes.items()
    }  # fmt: skip
    return HeadCheckpoint(config, tensors, token_ids)


def random_medusa(target: Path, tokens: Iterable[int] | None = None) -> MedusaCheckpoint:
    hidden = read_config(target).hidden_size
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for i in range(NUM_MEDUSA):
        tensors[f"{i}.0.linear.weight"] = (0.1 * torch.randn(hidden, hidden, generator=generator)).half().float()
        tensors[f"{i}.0.linear.bias"] = torch.zeros(hidden)
    token_ids = None if tokens is None else torch.tensor(list(tokens))
    return MedusaCheckpoint(tensors, token_ids, usual_accuracy(NUM_MEDUSA))


def write_random_heads(folder: Path, target: Path, tokens: Iterable[int] | None = None) -> None:
    """`eagle`, `eagle3` and `medusa` in the folder."""
    tokens = None if tokens is None else list(tokens)
    for kind in ("eagle", "eagle3"):
        write_head(folder / kind, random_head(target, kind, tokens))
    write_medusa(folder / "medusa", random_medusa(target, tokens), target.name)


def write_toy_pair(folder: Path, log_probs: np.ndarray) -> None:
    """A chain of four tokens in `target`, in `draft` a model that follows a blurred copy, and heads of every kind."""
    write_ending_checkpoint(folder / "target", log_probs)
    blurred = log_probs.copy()
    blurred[:, :4] *= 0.4
    write_ending_checkpoint(folder / "draft", blurred)
    write_random_heads(folder, folder / "target", range(4))
