"""What a head learns: its parameters, its loss, how often it is right, and the checkpoint that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from outrider.engine.checkpoint import ModelConfig
from outrider.engine.drafters.eagle_tree import TOP_K
from outrider.errors import ModelError
from outrider.training.features import Batch, Window

#: Temperatures at which the overlap of draft and target law is reported.
TEMPERATURES = (0.0, 0.5, 1.0)
_WARM = TEMPERATURES[1:]
#: Steps that are evaluated.
DEPTH = 4


@dataclass(frozen=True, slots=True, eq=False)
class Depth:
    """Predictions of one draft step: which token follows."""

    logits: torch.Tensor
    """[m, D]."""
    teacher: torch.Tensor
    """[m, D]: the target's logits there, over the draft vocabulary."""
    best: torch.Tensor
    """int64 [m]: the target's likeliest token of all, as a draft id; -1 where it cannot be drafted."""
    covered: torch.Tensor
    """[m, temperatures above 0]: log of the target's probability of all tokens that can be drafted."""


class Recipe(Protocol):
    """One kind of head in training."""

    @property
    def columns(self) -> tuple[int, ...]:
        """Which of the cached points it reads; the last one is always the target's last state."""

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """What is trained, by name in the checkpoint."""

    def begin_with(self, folder: Path, target: ModelConfig) -> None:
        """Start from the head there in place of `prepare`; ModelError when its parameters are not these."""

    def prepare(self, windows: Iterable[Window]) -> None:
        """Once, before the first step: from these, in random order, what a closed form gives."""

    def loss(self, batch: Batch, seed: int, done: float) -> torch.Tensor:
        """`seed`: of noise; the same seed gives the same loss again. `done`: share of the training time."""

    def depths(self, batch: Batch) -> list[Depth]:
        """Predictions of answers' tokens at each depth when what was drafted before was right."""

    def write(self, folder: Path, note: Mapping[str, Any], scores: Scores) -> None:
        """The head's checkpoint with `note` and its held-out figures, into the folder."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How a head does on texts that it was not trained on."""

    ranks: tuple[tuple[float, ...], ...]
    """[depth][rank]: how often its token of this rank is the target's likeliest."""
    overlap: Mapping[float, tuple[float, ...]]
    """By temperature and depth: the mean of sum min(draft, target), the acceptance of drawn drafts; at 0 the
    agreement of the likeliest tokens."""
    num_tokens: int

    @property
    def agreement(self) -> tuple[float, ...]:
        """At each depth, how often the head's first choice is the target's."""
        return tuple(row[0] for row in self.ranks)

    def accept_length(self, temperature: float, k: int) -> float:
        """Of a chain of `k`, were acceptance at each depth independent."""
        length, alive = 1.0, 1.0
        for rate in self.overlap[temperature][:k]:
            alive *= rate
            length += alive
        return length


def copy_parameters(folder: Path, stored: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> None:
    """ModelError when names or shapes differ."""
    if {name: one.shape for name, one in stored.items()} != {name: one.shape for name, one in parameters.items()}:
        raise ModelError(f"{folder} is of another kind of head")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(stored[name])


class Output:
    """The target's output matrix over a draft vocabulary, frozen."""

    def __init__(self, head: torch.Tensor, token_ids: torch.Tensor, embedding: torch.Tensor) -> None:
        """head and embedding [V, hidden] float32; token_ids int64 [D]."""
        self.embedding = embedding
        self.token_ids = token_ids
        self.whole = head
        self.rows = head[token_ids]
        self.draft_id = torch.full((head.shape[0],), -1, dtype=torch.long, device=head.device)
        self.draft_id[token_ids] = torch.arange(len(token_ids), device=head.device)

    def teacher(self, last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """last [m, hidden] -> logits [m, D], best [m] and covered [m, temperatures] as in `Depth`."""
        whole = last @ self.whole.T
        logits = whole[:, self.token_ids]
        best = self.draft_id[whole.argmax(dim=-1)]
        covered = [(logits / t).logsumexp(dim=-1) - (whole / t).logsumexp(dim=-1) for t in _WARM]
        return logits, best, torch.stack(covered, dim=-1)


def score(recipe: Recipe, batches: list[Batch], progress: Callable[[float], None] = lambda fraction: None) -> Scores:
    """Over all batches; the overlap is of whole laws, since what cannot be drafted has no draft probability."""
    right = torch.zeros(DEPTH, TOP_K, dtype=torch.double)
    overlap = torch.zeros(len(TEMPERATURES), DEPTH, dtype=torch.double)
    counts = torch.zeros(DEPTH, dtype=torch.double)
    with torch.no_grad():
        for number, batch in enumerate(batches):
            for d, depth in enumerate(recipe.depths(batch)[:DEPTH]):
                top = depth.logits.topk(min(TOP_K, depth.logits.shape[-1]), dim=-1).indices
                right[d, : top.shape[1]] += (top == depth.best.unsqueeze(1)).sum(dim=0).cpu()
                counts[d] += len(top)
                for i, temperature in enumerate(TEMPERATURES):
                    overlap[i, d] += float(_overlap(depth, temperature))
            progress((number + 1) / len(batches))
    used = int((counts > 0).sum())
    right, overlap = (right / counts.clamp(min=1).unsqueeze(1))[:used], (overlap / counts.clamp(min=1))[:, :used]
    return Scores(
        tuple(tuple(row) for row in right.tolist()),
        {t: tuple(overlap[i].tolist()) for i, t in enumerate(TEMPERATURES)},
        int(counts[0]),
    )


def _overlap(depth: Depth, temperature: float) -> torch.Tensor:
    if temperature == 0.0:
        return (depth.logits.argmax(dim=-1) == depth.best).sum()
    covered = depth.covered[:, _WARM.index(temperature)].exp().unsqueeze(1)
    target = (depth.teacher / temperature).softmax(dim=-1) * covered
    return torch.minimum(target, (depth.logits / temperature).softmax(dim=-1)).sum()
