"""The tokens that a head can draft: their output matrix, and what they are among the target's tokens."""

from __future__ import annotations

from pathlib import Path

import torch

from outrider.engine.drafters.eagle_tree import TOP_K
from outrider.engine.linear import Linear, pack, pack_int8
from outrider.engine.model import LlamaModel
from outrider.errors import ModelError
from outrider.speculation.target import SamplingLaw, Target


class DraftVocabulary:
    """A part of the target's vocabulary, or all of it; the others have no draft probability (arXiv 2502.14856)."""

    def __init__(
        self,
        target: LlamaModel,
        token_ids: torch.Tensor | None,
        own_head: Linear | None = None,
        *,
        is_int8: bool = False,
    ) -> None:
        """`own_head` in place of the target's rows; `token_ids` int64 [D], None when draft ids are the target's."""
        self.token_ids = token_ids
        self._vocab_size = target.config.vocab_size
        self._columns: torch.Tensor | None = None
        """Of the target's whole output, where its rows for these tokens alone cannot be had."""
        if own_head is not None:
            self._head = own_head
        elif token_ids is not None and target.config.has_tied_embeddings:
            rows = target.embedding[token_ids.to(target.placement.device)].float()
            self._head = pack_int8(rows, None) if is_int8 else pack(rows, None, target.placement)
        else:
            self._head, self._columns = target.head, token_ids
        self.num_bytes = 0 if self._head is target.head else self._head.num_bytes

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """states [n, hidden] -> [n, D] float32 on the CPU."""
        logits = self._head(states).float().cpu()
        return logits if self._columns is None else logits[:, self._columns]

    def tokens(self, draft_ids: list[int]) -> list[int]:
        """The target's tokens."""
        return draft_ids if self.token_ids is None else self.token_ids[draft_ids].tolist()

    def law(self, logits: torch.Tensor, law: SamplingLaw) -> torch.Tensor:
        """logits [D] -> [V] float64 over the target's vocabulary: the request's temperature and filters."""
        if self.token_ids is not None:
            whole = torch.full((self._vocab_size,), float("-inf"))
            logits = whole.index_copy_(0, self.token_ids, logits)
        return Target(logits.unsqueeze(0), law).probs(0, ())


def check_draft_tokens(path: Path, field: str, token_ids: torch.Tensor, vocab_size: int) -> None:
    """ModelError when a head's table of draft tokens names one twice or none of the target's, or is no list of them
    that is long enough for a tree."""
    if token_ids.dim() != 1 or token_ids.is_floating_point() or token_ids.numel() < TOP_K:
        raise ModelError(f"{path}: {field} must list {TOP_K} tokens or more, not {list(token_ids.shape)}")
    if len(set(token_ids.tolist())) < token_ids.numel():
        raise ModelError(f"{path}: {field} names a token twice")
    if not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size:
        raise ModelError(f"{path}: {field} names a token that is not below the vocabulary of {vocab_size}")
