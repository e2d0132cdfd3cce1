"""The target's hidden states of all texts, computed once, kept in fp16 on disk, and dealt out in windows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from outrider.engine.attention import Segment
from outrider.engine.drafters.eagle_net import config_for
from outrider.engine.model import LlamaModel
from outrider.engine.taps import Taps
from outrider.training.corpus import Progress, Text

#: Texts in a file, and in a pass.
SHARD, TOGETHER = 64, 4


def points_of(model: LlamaModel) -> tuple[int, ...]:
    """What any head reads: three layers' states and the last."""
    return (*config_for(model.config, "eagle3").points, model.config.num_layers)


def cache_features(model: LlamaModel, texts: Sequence[Text], folder: Path, progress: Progress) -> list[Path]:
    """Files of `SHARD` texts each, in order; those of the same tokens and points that are there already, as after a
    kill, are kept."""
    paths, points = [], points_of(model)
    for first in range(0, len(texts), SHARD):
        chosen = texts[first : first + SHARD]
        path = shard_path(folder, chosen, points)
        paths.append(path)
        if not path.is_file():
            write_shard(path, _states(model, chosen, points))
        progress(f"hidden states of {first + len(chosen)} texts", (first + len(chosen)) / len(texts))
    return paths


def shard_path(folder: Path, texts: Sequence[Text], points: tuple[int, ...]) -> Path:
    """Of the file with these texts' states."""
    made_from = hashlib.sha256(repr((points, [text.token_ids for text in texts])).encode()).hexdigest()
    return folder / f"{texts[0].index:07d}-{len(texts):02d}-{made_from[:16]}.safetensors"


def write_shard(path: Path, states: Sequence[torch.Tensor]) -> None:
    """Whole or not at all; each is [n, len(points) * hidden] fp16."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    save_file({f"{i}": own.contiguous() for i, own in enumerate(states)}, beside)
    os.replace(beside, path)


def _states(model: LlamaModel, texts: Sequence[Text], points: tuple[int, ...]) -> list[torch.Tensor]:
    """Of several texts in a pass: products of few rows are slow."""
    found: list[torch.Tensor] = []
    for first in range(0, len(texts), TOGETHER):
        chosen = [text.token_ids for text in texts[first : first + TOGETHER]]
        taps = Taps(points)
        model.forward([Segment(model.new_cache(len(tokens)), tokens, 0) for tokens in chosen], taps=taps)
        counts = [len(tokens) for tokens in chosen]
        found += torch.split(taps.features(points, range(sum(counts))).half().cpu(), counts)
    return found


def residual_rms(path: Path, hidden_size: int) -> float:
    """The usual size of the high layer's states in this file: what late layers add to."""
    with safe_open(path, framework="pt") as opened:
        states = opened.get_tensor("0").float().view(-1, 4, hidden_size)[:, 2]
    return float(states.square().mean(dim=-1).sqrt().median())


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A piece of one text."""

    token_ids: torch.Tensor
    """int64 [n]."""
    states: torch.Tensor
    """[n, points, hidden] fp16."""
    num_prompt: int
    """Of its tokens, those that the user wrote."""
    text: Text


def windows(texts: Sequence[Text], paths: Sequence[Path], columns: Sequence[int], size: int) -> list[Window]:
    """All texts in pieces of at most `size` tokens, with the states of these points (by number) in memory; without
    those that hold nothing of an answer."""
    found = []
    for shard, path in enumerate(paths):
        with safe_open(path, framework="pt") as opened:
            for i, text in enumerate(texts[shard * SHARD : (shard + 1) * SHARD]):
                states = opened.get_tensor(str(i))
                tokens = torch.tensor(text.token_ids)
                hidden = states.shape[1] // 4
                states = states.view(len(tokens), 4, hidden)[:, list(columns)].clone()
                for start in range(0, len(tokens), size):
                    part = slice(start, start + size)
                    num_prompt = max(0, len(text.prompt_ids) - start)
                    if len(tokens[part]) > max(4, num_prompt):
                        found.append(Window(tokens[part], states[part], num_prompt, text))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Windows side by side, shorter ones filled up at the end."""

    token_ids: torch.Tensor
    """int64 [B, n]."""
    states: torch.Tensor
    """float32 [B, n, points, hidden]."""
    mask: torch.Tensor
    """bool [B, n]: True for real tokens."""
    answer: torch.Tensor
    """bool [B, n]: True for tokens of an answer, by which heads are judged: a chat template is easy to guess."""


def collate(chosen: Sequence[Window], device: torch.device) -> Batch:
    """Windows of several lengths as one batch, filled up at the end; `device` is where it goes."""
    pad = torch.nn.utils.rnn.pad_sequence
    token_ids = pad([window.token_ids for window in chosen], batch_first=True)
    states = pad([window.states for window in chosen], batch_first=True)
    lengths = torch.tensor([len(window.token_ids) for window in chosen])
    mask = torch.arange(token_ids.shape[1]) < lengths.unsqueeze(1)
    first = torch.tensor([window.num_prompt for window in chosen]).unsqueeze(1)
    answer = mask & (torch.arange(token_ids.shape[1]) >= first)
    return Batch(token_ids.to(device), states.to(device).float(), mask.to(device), answer.to(device))
