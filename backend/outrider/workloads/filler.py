"""Prompts of an asked length that look like text: a walk over words that follow one another in given texts.

Random tokens would mislead: no tokenizer, drafter or cache meets them in its work.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

#: Characters that a token of English has, about; what a target counts stands in its answers.
CHARS_PER_TOKEN = 4.3


class Filler:
    """Learns which words follow one another; knows nothing else of the texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        """ValueError when the texts hold no words."""
        self._after: dict[str, list[str]] = {}
        self._starts = [text.split()[0] for text in texts if text.split()]
        if not self._starts:
            raise ValueError("a filler needs texts with words")
        for text in texts:
            words = text.split()
            for word, following in pairwise(words):
                self._after.setdefault(word, []).append(following)

    def text(self, num_tokens: int, seed: str) -> str:
        """About so many tokens; the same for the same seed."""
        rng = random.Random(seed)
        words: list[str] = []
        missing = num_tokens * CHARS_PER_TOKEN
        while missing > 0:
            following = self._after.get(words[-1]) if words else None
            words.append(rng.choice(following or self._starts))
            missing -= len(words[-1]) + 1
        return " ".join(words)

    def lengthened(self, text: str, num_tokens: int, seed: str) -> str:
        """`text` behind so much filler that both have about `num_tokens`; unchanged when it has as many already."""
        missing = num_tokens - round(len(text) / CHARS_PER_TOKEN)
        return text if missing <= 0 else f"{self.text(missing, seed)}\n\n{text}"
