"""The target law: the one function that says which token may follow, for plain decoding and verification alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: How many of the most probable tokens are sorted before a whole-vocabulary sort is needed for top-p.
_PARTIAL_SORT = 1024


@dataclass(frozen=True, slots=True)
class SamplingLaw:
    """How logits become a law. `temperature` 0 is greedy; `top_k` 0 means all tokens; the filters apply jointly."""

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


def target_probs(logits: torch.Tensor, law: SamplingLaw) -> torch.Tensor:
    """logits [N, V] float -> probabilities [N, V] float64, each row summing to 1.

    Top-k, top-p and min-p each keep a set of tokens of the tempered law and the kept sets are intersected, as plain
    samplers that filter jointly do; the most probable token always stays.
    """
    if law.is_greedy:
        chosen = logits.argmax(dim=-1, keepdim=True)
        return torch.zeros(logits.shape, dtype=torch.float64).scatter_(-1, chosen, 1.0)
    # Subtracting the maximum first keeps a tiny temperature from overflowing.
    scaled = (logits.double() - logits.max(dim=-1, keepdim=True).values) / law.temperature
    probs = scaled.softmax(dim=-1)
    return _filtered(probs, law) if law.is_filtered else probs


def _filtered(probs: torch.Tensor, law: SamplingLaw) -> torch.Tensor:
    """probs [N, V] -> the same law restricted to the kept tokens, renormalised."""
    vocab = probs.shape[-1]
    num_sorted = min(law.top_k or vocab, vocab)
    if law.top_k == 0:
        num_sorted = min(_PARTIAL_SORT, vocab)
    top, index = probs.topk(num_sorted, dim=-1)
    if law.top_k == 0 and num_sorted < vocab and _needs_more(top, law):
        top, index = probs.sort(dim=-1, descending=True)
    before = top.cumsum(dim=-1) - top  # mass of strictly better tokens
    # Rank 0 has nothing before it and is the maximum, so it passes both conditions.
    kept = (before < law.top_p) & (top >= law.min_p * top[..., :1])
    top = top * kept
    top = top / top.sum(dim=-1, keepdim=True)
    return torch.zeros_like(probs).scatter_(-1, index, top)


def _needs_more(top: torch.Tensor, law: SamplingLaw) -> bool:
    """Whether a token beyond the partial sort could be kept: by top-p and by min-p both."""
    by_top_p = top.sum(dim=-1) < law.top_p
    by_min_p = top[..., -1] >= law.min_p * top[..., 0]
    return bool((by_top_p & by_min_p).any())


def choose(logits: torch.Tensor, law: SamplingLaw, uniforms: torch.Tensor) -> torch.Tensor:
    """logits [N, V], uniforms [N] in [0, 1) -> one token per row [N], by inverting the law's distribution function.

    A row's token depends on its law and its uniform only. Greedy laws ignore the uniforms.
    """
    if law.is_greedy:
        return logits.argmax(dim=-1)
    return invert(target_probs(logits, law), uniforms)


def invert(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """probs [N, V] float64, uniforms [N] in [0, 1) -> tokens [N]; never one of probability zero."""
    cumulative = probs.cumsum(dim=-1)
    total = cumulative[:, -1]
    # Rounding must not carry the point onto the total, which lies beyond the last token.
    point = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, point.unsqueeze(-1), right=True).squeeze(-1)
