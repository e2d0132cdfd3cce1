"""The target law: the one function that says which token may follow, for plain decoding and verification alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from outrider.speculation.noise import Choice, Coins

#: Rounding depends on the shape of the batch: how far it may move the difference of two logits of one row. Four times
#: what was seen of a model of 135 M parameters, whose logits go up to 40, in steps of 1 to 17 rows.
ROUNDING = 5e-4
#: A slack beyond this says nothing more.
_MAX_SLACK = 50.0
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
        """The likeliest token, always."""
        return self.temperature == 0.0

    @property
    def is_filtered(self) -> bool:
        """Whether unlikely tokens are cut off."""
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
        if self.law.is_greedy:
            logits = self.logits_at(row, path)
            return torch.zeros(logits.shape, dtype=torch.float64).scatter_(
                -1, logits.argmax(dim=-1, keepdim=True), 1.0
            )
        return self._sampled(row, path)[0]

    def choose(self, row: int, path: tuple[int, ...], coins: Coins) -> Choice:
        """The token that plain decoding emits after `path`: the likeliest one, or the one that its position draws."""
        law = self.law
        tolerance = ROUNDING * max(law.repetition_penalty, 1.0 / law.repetition_penalty)
        if law.is_greedy:
            logits = self.logits_at(row, path)
            token = int(logits.argmax())
            return Choice(token, int((logits > logits[token] - tolerance).count_nonzero()) > 1)
        slack = min(tolerance / law.temperature, _MAX_SLACK)
        probs, doubtful = self._sampled(row, path, slack)
        return coins.choose(len(path), probs, slack, doubtful)

    def _sampled(
        self, row: int, path: tuple[int, ...], slack: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The law [V] of a temperature above 0, and of tokens that may be in it or not their weights [V]."""
        logits, law = self.logits_at(row, path), self.law
        # Subtracting the maximum first keeps a tiny temperature from overflowing.
        probs = ((logits.double() - logits.max()) / law.temperature).softmax(dim=-1)
        return _filtered(probs, law, slack) if law.is_filtered else (probs, None)

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


def _filtered(probs: torch.Tensor, law: SamplingLaw, slack: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    """probs [V] -> the same law restricted to the kept tokens, renormalised; and [V] the weights of doubtful tokens.

    Top-k, top-p and min-p each keep a set of tokens of the tempered law and the kept sets are intersected, as plain
    samplers that filter jointly do; the most probable token always stays. Doubtful are tokens between what is kept
    and what is dropped however log probabilities move by `slack`, and those that could change places with them.
    """
    vocab, factor = probs.shape[-1], math.exp(slack)
    num_sorted = min(law.top_k + 1 if law.top_k else _PARTIAL_SORT, vocab)
    top, index = probs.topk(num_sorted, dim=-1)
    fewest, num_kept, most = _num_kept(top, law, slack)
    if num_sorted < vocab and top[-1] >= top[most - 1] / factor:
        top, index = probs.sort(dim=-1, descending=True)
        fewest, num_kept, most = _num_kept(top, law, slack)
    total = top[:num_kept].sum()
    filtered = torch.zeros_like(probs).scatter_(-1, index[:num_kept], top[:num_kept] / total)
    if slack == 0.0 or fewest == top.numel():
        return filtered, None
    is_doubtful = (top >= top[most - 1] / factor) & (top <= top[fewest] * factor)
    if not is_doubtful.any():
        return filtered, None
    return filtered, torch.zeros_like(probs).scatter_(-1, index, top * is_doubtful / total)


def _num_kept(top: torch.Tensor, law: SamplingLaw, slack: float) -> list[int]:
    """How many of the descending probabilities `top` [n] stay: limits tighter by `slack`, as they are, and looser.

    In this order each filter keeps a beginning, so all together do; the first token always stays.
    """
    counts = []
    mass_before = top.cumsum(dim=-1) - top
    for shift in (-slack, 0.0, slack):
        count = law.top_k or top.numel()
        if law.min_p > 0.0:
            count = min(count, int((top >= law.min_p * top[0] * math.exp(-shift)).count_nonzero()))
        if law.top_p < 1.0:
            count = min(count, int((mass_before < law.top_p + shift).count_nonzero()))
        counts.append(max(1, min(count, top.numel())))
    return counts
