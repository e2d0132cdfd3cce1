"""Look-up drafters replayed on a text: what they would have had accepted, without a model and without running them.

A draft of a look-up is a single token, and it is accepted exactly when it equals the emitted one, at any temperature;
so the text alone says what would have been accepted. Token ids are exact. Of plain text, tokens are guessed by the
rule that byte-pair vocabularies split text with before they merge (words with the space before them, single digits,
runs of signs): frequent words are one token, so the guess errs towards too few tokens and too low an acceptance.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

from outrider.core import MAX_K

_PIECE = re.compile(r" ?[^\W\d_]+| ?\d| ?[^\w\s]+|_|\s+")
#: A pair is where look-up starts, and each matched token earns two drafts, as in the engine's drafter.
_MIN_MATCH, _DRAFTS_PER_MATCHED, _MAX_MATCH = 2, 2, 32


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


def replay(drafter: str, prompt: Sequence[Hashable], answer: Sequence[Hashable]) -> list[int]:
    """Accepted drafts per round of writing `answer`: entry i counts rounds with exactly i, 0 .. MAX_K.

    `ngram` follows the newest of the longest matches; `suffix` what most often followed the longest match of up to
    eight tokens, one draft per matched token.
    """
    tokens = [*prompt, *answer]
    histogram = [0] * (MAX_K + 1)
    index = _Index()
    position = len(prompt)
    index.extend(tokens, position)
    while position < len(tokens):
        drafts = index.newest(tokens, position) if drafter == "ngram" else index.likeliest(tokens, position)
        accepted = 0
        # The last token of a text is never a draft's: the round that ends it emits it itself.
        limit = len(tokens) - position - 1
        while accepted < min(len(drafts), limit) and drafts[accepted] == tokens[position + accepted]:
            accepted += 1
        histogram[accepted] += 1
        position = min(position + accepted + 1, len(tokens))
        index.extend(tokens, position)
    return histogram


class _Index:
    """Where each pair of neighbours ended, oldest first, in the tokens read so far."""

    def __init__(self) -> None:
        self._ends: dict[tuple[Hashable, Hashable], list[int]] = {}
        self._size = 0

    def extend(self, tokens: Sequence[Hashable], size: int) -> None:
        for end in range(max(self._size, 1) + 1, size + 1):
            self._ends.setdefault((tokens[end - 2], tokens[end - 1]), []).append(end)
        self._size = max(self._size, size)

    def _matches(self, tokens: Sequence[Hashable], size: int) -> list[tuple[int, int]]:
        """Length and end of the earlier occurrences of the last pair; the newest 32."""
        if size < _MIN_MATCH:
            return []
        ends = self._ends[tokens[size - 2], tokens[size - 1]][-_MAX_MATCH - 1 : -1]
        return [(self._length(tokens, size, end), end) for end in ends]

    @staticmethod
    def _length(tokens: Sequence[Hashable], size: int, end: int) -> int:
        length = _MIN_MATCH
        while length < min(_MAX_MATCH, end) and tokens[end - 1 - length] == tokens[size - 1 - length]:
            length += 1
        return length

    def newest(self, tokens: Sequence[Hashable], size: int) -> list[Hashable]:
        matches = self._matches(tokens, size)
        if not matches:
            return []
        length, end = max(matches)
        period = size - end
        return [tokens[end + i % period] for i in range(min(MAX_K, _DRAFTS_PER_MATCHED * length))]

    def likeliest(self, tokens: Sequence[Hashable], size: int) -> list[Hashable]:
        matches = self._matches(tokens, size)
        if not matches:
            return []
        longest = min(max(length for length, _ in matches), 8)
        ends = [end for length, end in matches if length >= longest]
        drafts: list[Hashable] = []
        while ends and len(drafts) < min(MAX_K, longest):
            followers = [tokens[end + len(drafts)] for end in ends if end + len(drafts) < size]
            if not followers:
                break
            token = max(reversed(followers), key=followers.count)
            ends = [end for end in ends if end + len(drafts) < size and tokens[end + len(drafts)] == token]
            drafts.append(token)
        return drafts
