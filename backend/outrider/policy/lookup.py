"""What looking up in a text would tell of its tokens, without a model: a dry run.

Of plain text, tokens are guessed by the rule that byte-pair vocabularies split text with before they merge (words
with the space before them, single digits, runs of signs): frequent words are one token, so the guess errs towards too
few tokens and too low an acceptance.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

_PIECE = re.compile(r" ?[^\W\d_]+| ?\d| ?[^\w\s]+|_|\s+")
#: A pair is where look-up starts, as in the engine's drafter.
_MIN_MATCH = 2


def split_text(text: str) -> list[str]:
    """A text as the pieces that stand for its tokens."""
    return _PIECE.findall(text)


def told_share(tokens: Sequence[Hashable]) -> float:
    """Share of tokens that the newest earlier occurrence of the pair before them was followed by."""
    if len(tokens) <= _MIN_MATCH:
        return 0.0
    followers: dict[tuple[Hashable, Hashable], Hashable] = {}
    told = 0
    for first, second, follower in zip(tokens, tokens[1:], tokens[2:], strict=False):
        pair = (first, second)
        told += followers.get(pair) == follower
        followers[pair] = follower
    return told / (len(tokens) - _MIN_MATCH)
