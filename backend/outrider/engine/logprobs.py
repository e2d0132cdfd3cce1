"""Log probabilities of emitted tokens under the model itself, and their shapes on the wire.

They are the log softmax of the model's raw logits, before penalties, bias, grammar, temperature and filters, as
SGLang reports them by default: how likely the model found the token, not how likely the request's law was to draw it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: Alternatives per token that a request may ask for, as OpenAI's limit.
MAX_TOP_LOGPROBS = 20

TokenText = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One emitted token's log probability, and those of the most probable tokens at its place, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    """logits [n, V], whose row i the emitted token i was drawn from."""
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(-1, torch.tensor(token_ids, dtype=torch.long).unsqueeze(-1)).squeeze(-1).tolist()
    values, indices = (rows.tolist() for rows in logprobs.topk(num_top, dim=-1))
    tops = (tuple(zip(ids, best, strict=True)) for ids, best in zip(indices, values, strict=True))
    return tuple(TokenLogprob(*one) for one in zip(token_ids, chosen, tops, strict=True))


def chat_logprobs(tokens: Sequence[TokenLogprob], text: TokenText) -> dict[str, Any]:
    """OpenAI's chat shape. `bytes` is null for a token that holds a part of a character."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        token = text(token_id)
        return {"token": token, "logprob": logprob, "bytes": None if "\ufffd" in token else list(token.encode())}

    content = [
        entry(t.token_id, t.logprob) | {"top_logprobs": [entry(token_id, value) for token_id, value in t.top]}
        for t in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprob], text: TokenText, first_offset: int) -> dict[str, Any]:
    """OpenAI's completion shape; offsets are characters of the tokens' texts, from `first_offset` on."""
    texts = [text(t.token_id) for t in tokens]
    offsets = [first_offset + sum(len(before) for before in texts[:i]) for i in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [t.logprob for t in tokens],
        "top_logprobs": [{text(token_id): value for token_id, value in t.top} for t in tokens],
        "text_offset": offsets,
    }


def generate_logprobs(tokens: Sequence[TokenLogprob], text: TokenText | None, has_top: bool) -> dict[str, Any]:
    """SGLang's keys of `meta_info`: triples of log probability, token and text, which is null unless asked for."""

    def triple(token_id: int, logprob: float) -> list[Any]:
        return [logprob, token_id, None if text is None else text(token_id)]

    found: dict[str, Any] = {
        "input_token_logprobs": [],
        "output_token_logprobs": [triple(t.token_id, t.logprob) for t in tokens],
        "output_token_logprobs_length": len(tokens),
    }
    if has_top:
        found["input_top_logprobs"] = []
        found["output_top_logprobs"] = [[triple(token_id, value) for token_id, value in t.top] for t in tokens]
    return found
