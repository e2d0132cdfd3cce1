"""The target law: the one function that says which token may follow, for plain decoding and verification alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

#: How many of the most probable tokens are sorted before a whole-vocabulary sort is needed for top-p.
_PARTIAL_SORT = 1024


@dataclass(frozen=True, slots=True)
class SamplingLaw:
    """How logits become a law. `temperature` 0 is greedy; `top_k` 0 means all tokens; the filters apply jointly.

    Repetition counts prompt and output, as in Hugging Face and vLLM; frequency and presence count the output only.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of token and what is added to its logit."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def is_filtered(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def is_penalised(self) -> bool:
        """Whether the law depends on earlier tokens other than through the model."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


@dataclass(frozen=True, slots=True)
class History:
    """Committed tokens of a request, which penalties count."""

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]


@dataclass(frozen=True)
class Target:
    """The target's rows in one verify step; see `proposal` for which row stands for what."""

    logits: torch.Tensor
    """[n + 1, V] float."""
    law: SamplingLaw
    history: History | None = None
    """Needed by penalties only."""
    masks: torch.Tensor | None = None
    """[n + 1, V] bool, True for tokens that the grammar allows; rows after a token that it forbids are never read."""

    def __post_init__(self) -> None:
        if self.law.is_penalised and self.history is None:
            raise ValueError("penalties need the history")

    def probs(self, row: int, path: tuple[int, ...]) -> torch.Tensor:
        """[V] float64 summing to 1: the law of the token after the draft tokens `path`, which lead to this row."""
        logits, law = self.logits_at(row, path), self.law
        if law.is_greedy:
            return torch.zeros(logits.shape, dtype=torch.float64).scatter_(
                -1, logits.argmax(dim=-1, keepdim=True), 1.0
            )
        # Subtracting the maximum first keeps a tiny temperature from overflowing.
        probs = ((logits.double() - logits.max()) / law.temperature).softmax(dim=-1)
        return _filtered(probs, law) if law.is_filtered else probs

    def logits_at(self, row: int, path: tuple[int, ...]) -> torch.Tensor:
        """[V]: the row's logits after penalties, bias and grammar, in this order; what a greedy law maximises.

        Raises ValueError where the grammar allows nothing.
        """
        logits = self.logits[row]
        if self.law.is_penalised:
            logits = self._penalised(logits, path)
        if self.law.logit_bias:
            logits = logits.index_add(0, *self._bias)
        if self.masks is not None:
            if not self.masks[row].any():
                raise ValueError(f"the grammar allows no token at row {row}")
            logits = logits.masked_fill(~self.masks[row], -torch.inf)
        return logits

    def _penalised(self, logits: torch.Tensor, path: tuple[int, ...]) -> torch.Tensor:
        """logits [V]; the tokens on the path count as output, since they are when this row is reached."""
        law = self.law
        in_prompt, counts = self._counts
        counts = counts.index_add(0, torch.tensor(path, dtype=torch.long), counts.new_ones(len(path)))
        penalised = torch.where(logits > 0, logits / law.repetition_penalty, logits * law.repetition_penalty)
        logits = torch.where(in_prompt | (counts > 0), penalised, logits)
        return logits - law.frequency_penalty * counts - law.presence_penalty * counts.clamp(max=1.0)

    @cached_property
    def _counts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[V] bool: in the prompt; [V] of the logits' type: times in the output."""
        assert self.history is not None
        prompt, output = (
            torch.bincount(torch.tensor(ids, dtype=torch.long), minlength=self.logits.shape[-1])
            for ids in (self.history.prompt_ids, self.history.output_ids)
        )
        return prompt > 0, output.to(self.logits.dtype)

    @cached_property
    def _bias(self) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, values = zip(*self.law.logit_bias, strict=True)
        return torch.tensor(tokens), torch.tensor(values, dtype=self.logits.dtype)


def count_near_ties(logits: torch.Tensor, tolerance: float) -> int:
    """logits [N, V] -> rows whose two largest logits are less than `tolerance` apart.

    Rounding differs between batch shapes, so at such a row two correct runs may choose differently.
    """
    top = logits.topk(2, dim=-1).values
    return int((top[..., 0] - top[..., 1] < tolerance).sum())


def _filtered(probs: torch.Tensor, law: SamplingLaw) -> torch.Tensor:
    """probs [V] -> the same law restricted to the kept tokens, renormalised.

    Top-k, top-p and min-p each keep a set of tokens of the tempered law and the kept sets are intersected, as plain
    samplers that filter jointly do; the most probable token always stays.
    """
    vocab = probs.shape[-1]
    num_sorted = min(law.top_k or vocab, vocab)
    if law.top_k == 0:
        num_sorted = min(_PARTIAL_SORT, vocab)
    top, index = probs.topk(num_sorted, dim=-1)
    if law.top_k == 0 and num_sorted < vocab and _needs_more(top, law):
        top, index = probs.sort(dim=-1, descending=True)
    before = top.cumsum(dim=-1) - top  # mass of strictly better tokens
    # Rank 0 has nothing before it and is the maximum, so it passes both conditions.
    kept = (before < law.top_p) & (top >= law.min_p * top[0])
    top = top * kept
    return torch.zeros_like(probs).scatter_(-1, index, top / top.sum())


def _needs_more(top: torch.Tensor, law: SamplingLaw) -> bool:
    """Whether a token beyond the partial sort could be kept: by top-p and by min-p both."""
    return bool(top.sum() < law.top_p and top[-1] >= law.min_p * top[0])
