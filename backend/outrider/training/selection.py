"""What one run of training learns from, fixed at its start: draft tokens, texts, and those that it is judged by."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from outrider.errors import ModelError
from outrider.training.corpus import Text


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Stored with the run's state: the texts beside it may become more while a head is trained."""

    token_ids: torch.Tensor
    """int64 [D], ascending: the draft vocabulary."""
    texts: tuple[Text, ...]
    """The target's, then natural ones, in order."""
    held_out: frozenset[int]
    """Numbers of the texts that are kept from training."""

    @property
    def written(self) -> list[Text]:
        """By the target."""
        return [text for text in self.texts if not text.is_natural]

    @property
    def natural(self) -> list[Text]:
        """Those that somebody wrote, and not the model."""
        return [text for text in self.texts if text.is_natural]

    @property
    def digest(self) -> str:
        """SHA-256 of the token ids of each text, with whether it is held out."""
        ids = [(text.token_ids, text.index in self.held_out) for text in self.texts]
        return hashlib.sha256(repr(ids).encode()).hexdigest()

    def stored(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {
            "token_ids": self.token_ids,
            "texts": [text.index for text in self.texts],
            "held_out": sorted(self.held_out),
            "digest": self.digest,
        }


def select(texts: Sequence[Text], draft_vocab: int, vocab_size: int) -> Selection:
    """ModelError when nothing would be left to train on or to judge by."""
    held_out = frozenset(text.index for text in texts if text.is_held_out)
    training = [text for text in texts if text.index not in held_out]
    if not held_out or all(text.is_natural for text in training):
        raise ModelError(f"{len(texts)} texts are too few to train on some and keep others: allow more of them")
    return Selection(draft_vocabulary(training, draft_vocab, vocab_size), tuple(texts), held_out)


def restore(stored: Mapping[str, Any], texts: Sequence[Text]) -> Selection:
    """Of these texts those that the run began with; ModelError when they are not all there as they were."""
    by_index = {text.index: text for text in texts}
    chosen = tuple(by_index[index] for index in stored["texts"] if index in by_index)
    found = Selection(stored["token_ids"], chosen, frozenset(stored["held_out"]))
    if found.digest != stored["digest"]:
        raise ModelError("the texts that this run began with are not all there as they were")
    return found


def draft_vocabulary(texts: Sequence[Text], size: int, vocab_size: int) -> torch.Tensor:
    """int64 [size], ascending: tokens that occur, the commonest first, then the lowest ids, which byte pair encoding
    gave to what is common everywhere."""
    counts = Counter(token for text in texts for token in text.token_ids)
    order = dict.fromkeys([*(token for token, _ in counts.most_common()), *range(vocab_size)])
    return torch.tensor(sorted(list(order)[: min(size, vocab_size)]))
