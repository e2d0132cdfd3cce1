"""What looking up in a text would tell of its tokens, without a model: a dry run.

Of plain text, tokens are guessed by the rule that byte-pair vocabularies split text with before they merge (words
with the space before them, single digits, runs of signs): frequent words are one token, so the guess errs towards too
few tokens and too low an acceptance.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

from outrider.core import SpecStats

_PIECE = re.compile(r" ?[^\W\d_]+| ?\d| ?[^\w\s]+|_|\s+")
#: A pair is where look-up starts, as in the engine's drafter.
_MIN_MATCH = 2
#: What the engine's drafter follows: the longest match up to this, and two drafts for each matched token.
_MAX_MATCH, _DRAFTS_PER_MATCHED = 32, 2
#: A replay looks at this much of the prompt's end and the answer's beginning, and at so many occurrences of a pair:
#: that bounds its time to a millisecond or two.
_PROMPT, _ANSWER, _OCCURRENCES = 512, 256, 8


def split_text(text: str) -> list[str]:
    """A text as the pieces that stand for its tokens."""
    return _PIECE.findall(text)


def told_share(tokens: Sequence[Hashable]) -> float:
    """Share of tokens that the newest earlier occurrence of the pair before them was followed by."""
    if len(tokens) <= _MIN_MATCH:
        return 0.0
    followers: dict[tuple[Hashable, Hashable], Hashable] = {}
    told = 0
    for pair, follower in zip(pairwise(tokens), tokens[2:], strict=False):
        if followers.get(pair) == follower:
            told += 1
        followers[pair] = follower
    return told / (len(tokens) - _MIN_MATCH)


class Written(NamedTuple):
    """A finished text: tokens, or the pieces that stand for them."""

    prompt: Sequence[Hashable]
    answer: Sequence[Hashable]

    @classmethod
    def of(cls, prompt: str, answer: str) -> Written:
        """Plain text in pieces, as far as a replay looks at it."""
        return cls(split_text(prompt[-_PROMPT * 6 :]), split_text(answer[: _ANSWER * 6]))


def replayed(written: Written, k: int) -> SpecStats | None:
    """What rounds of look-up with k drafts would have shown of a text, whatever wrote it; None when it is too short.

    The drafts are deterministic, so a sampled answer tells as much of them as a greedy one.
    """
    tokens = list(written.prompt[-_PROMPT:])
    answer = written.answer[:_ANSWER]
    lookup, histogram, num_proposed, at = _LookUp(), [0] * (k + 1), 0, 1
    for token in (*tokens, *answer[:1]):
        lookup.add(token)
    while at < len(answer) - 1:
        # The target's own token follows the drafts, so the last one is never drafted.
        drafts = lookup.drafts(min(k, len(answer) - 1 - at))
        wrong = (i for i, (draft, token) in enumerate(zip(drafts, answer[at:], strict=False)) if draft != token)
        accepted = next(wrong, len(drafts))
        histogram[accepted] += 1
        num_proposed += len(drafts)
        for token in answer[at : at + accepted + 1]:
            lookup.add(token)
        at += accepted + 1
    num_rounds = sum(histogram)
    num_accepted = sum(i * n for i, n in enumerate(histogram))
    return SpecStats(num_rounds, num_accepted, tuple(histogram), num_proposed) if num_rounds else None


class _LookUp:
    """The longest earlier occurrence of a text's end, of equals the newest, as the engine's drafter finds it."""

    def __init__(self) -> None:
        self._tokens: list[Hashable] = []
        self._ends: dict[tuple[Hashable, Hashable], list[int]] = {}
        """By pair of neighbours: the places right behind it, oldest first."""

    def add(self, token: Hashable) -> None:
        if self._tokens:
            self._ends.setdefault((self._tokens[-1], token), []).append(len(self._tokens) + 1)
        self._tokens.append(token)

    def drafts(self, k: int) -> list[Hashable]:
        tokens = self._tokens
        if len(tokens) <= _MIN_MATCH:
            return []
        ends = self._ends[tokens[-2], tokens[-1]][-_OCCURRENCES - 1 : -1]
        if not ends:
            return []
        length, end = max((self._match(end), end) for end in ends)
        period = len(tokens) - end
        return [tokens[end + i % period] for i in range(min(k, _DRAFTS_PER_MATCHED * length))]

    def _match(self, end: int) -> int:
        """How many tokens before `end` equal the text's last ones."""
        tokens, size = self._tokens, _MIN_MATCH
        limit = min(_MAX_MATCH, end)
        while size < limit and tokens[end - 1 - size] == tokens[-1 - size]:
            size += 1
        return size
