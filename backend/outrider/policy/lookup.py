"""What looking up in a text would tell of its tokens, without a model: a dry run.

Of plain text, tokens are guessed by the rule that byte-pair vocabularies split text with before they merge (words
with the space before them, single digits, runs of signs): frequent words are one token, so the guess errs towards too
few tokens and too low an acceptance.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from outrider.core import MAX_K, SpecStats
from outrider.suffixes import MAX_MATCH, Growth, SuffixAutomaton, best_growth

#: Over bytes, which takes half as long as over characters. What is not ASCII counts as letters, but for the planes of
#: signs and of scripts without spaces, such as Chinese, where each character is a piece.
_PIECE = re.compile(rb" ?[A-Za-z\x80-\xe1\xee-\xff]+| ?\d| ?[^\sA-Za-z\d_\x80-\xff]+|[\xe2-\xed][\x80-\xbf]{2}|_|\s+")
#: A pair is where look-up starts, as in the engine's drafter.
_MIN_MATCH = 2
#: What the engine's n-gram drafter follows: the longest match up to this, and two drafts for each matched token.
_MAX_MATCH, _DRAFTS_PER_MATCHED = 32, 2
#: A replay looks at this much of the prompt's end and the answer's beginning, and at so many occurrences of a pair:
#: that bounds its time to a few milliseconds.
_PROMPT, _ANSWER, _OCCURRENCES = 512, 256, 8


def split_text(text: str) -> list[bytes]:
    """A text as the pieces that stand for its tokens."""
    return _PIECE.findall(text.encode(errors="surrogatepass"))


def told_share(tokens: Sequence[Hashable]) -> float:
    """Share of tokens that some earlier occurrence of the pair before them was followed by.

    A little more than look-up finds, which follows the newest one: by 0.005 on average on Spec-Bench's prompts.
    """
    num = len(tokens) - _MIN_MATCH
    if num <= 0:
        return 0.0
    return 1 - len(set(zip(tokens, tokens[1:], tokens[2:], strict=False))) / num


class Written(NamedTuple):
    """A finished text: tokens, or the pieces that stand for them."""

    prompt: Sequence[Hashable]
    answer: Sequence[Hashable]

    @classmethod
    def of(cls, prompt: str, answer: str) -> Written:
        """Plain text in pieces, as far as a replay looks at it."""
        return cls(split_text(prompt[-_PROMPT * 6 :]), split_text(answer[: _ANSWER * 6]))


class Replay:
    """What rounds of one look-up with k drafts would have shown of a text, whatever wrote it.

    The drafts are deterministic, so a sampled answer tells as much of them as a greedy one.
    """

    def __init__(self, drafter: str, k: int) -> None:
        self._lookup, self._k = _RULES[drafter](), k
        self._histogram, self._by_draft = [0] * (k + 1), [0] * k
        self._num_proposed = 0

    def rounds(self, written: Written) -> Iterator[None]:
        """Look through a text; stops after each round, so that others may work between them."""
        ids: dict[Hashable, int] = {}
        prompt, answer = (
            [ids.setdefault(token, len(ids)) for token in tokens]
            for tokens in (written.prompt[-_PROMPT:], written.answer[:_ANSWER])
        )
        lookup, at = self._lookup, 1
        for token in (*prompt, *answer[:1]):
            lookup.add(token)
        while at < len(answer) - 1:
            # The target's own token follows the drafts, so the last one is never drafted.
            drafts = lookup.drafts(min(self._k, len(answer) - 1 - at))
            path = _accepted(drafts, answer[at:])
            accepted = len(path)
            self._histogram[accepted] += 1
            for node in path:
                self._by_draft[node] += 1
            self._num_proposed += len(drafts.token_ids)
            for token in answer[at : at + accepted + 1]:
                lookup.add(token)
            at += accepted + 1
            yield

    @property
    def stats(self) -> SpecStats | None:
        """Of the rounds so far; None before the first, as for an answer that is too short."""
        num_accepted = sum(i * n for i, n in enumerate(self._histogram))
        num_rounds = sum(self._histogram)
        if not num_rounds:
            return None
        counts = tuple(self._histogram), self._num_proposed, tuple(self._by_draft)
        return SpecStats(num_rounds, num_accepted, *counts)


def _accepted(drafts: Growth, answer: Sequence[int]) -> list[int]:
    """The path from the root that goes along the answer; a look-up's likeliest drafts stand first."""
    path = [-1]
    for i, (token, parent) in enumerate(zip(drafts.token_ids, drafts.parents, strict=True)):
        # Parents stand before their children, so one pass finds the path.
        if parent == path[-1] and token == answer[len(path) - 1]:
            path.append(i)
    return path[1:]


class _Rule(Protocol):
    """How a drafter of the engine proposes from the text so far."""

    def add(self, token: int) -> None: ...
    def drafts(self, k: int) -> Growth: ...


class _Suffixes:
    """The tree of what most often followed the text's end in this text, as the engine's drafter grows it."""

    def __init__(self) -> None:
        self._automaton = SuffixAutomaton(MAX_MATCH + MAX_K)
        self._tail: list[int] = []

    def add(self, token: int) -> None:
        self._automaton.append(token)
        self._tail.append(token)
        del self._tail[:-MAX_MATCH]

    def drafts(self, k: int) -> Growth:
        return best_growth((self._automaton,), self._tail, k)


class _LookUp:
    """The longest earlier occurrence of a text's end, of equals the newest, as the engine's drafter finds it."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, int], list[int]] = {}
        """By pair of neighbours: the places right behind it, oldest first."""

    def add(self, token: int) -> None:
        if self._tokens:
            self._ends.setdefault((self._tokens[-1], token), []).append(len(self._tokens) + 1)
        self._tokens.append(token)

    def drafts(self, k: int) -> Growth:
        tokens = self._tokens
        if len(tokens) <= _MIN_MATCH:
            return Growth()
        ends = self._ends[tokens[-2], tokens[-1]][-_OCCURRENCES - 1 : -1]
        if not ends:
            return Growth()
        length, end = max((self._match(end), end) for end in ends)
        period = len(tokens) - end
        num = min(k, _DRAFTS_PER_MATCHED * length)
        return Growth(0.0, tuple(tokens[end + i % period] for i in range(num)), tuple(range(-1, num - 1)))

    def _match(self, end: int) -> int:
        """How many tokens before `end` equal the text's last ones."""
        tokens, size = self._tokens, _MIN_MATCH
        limit = min(_MAX_MATCH, end)
        while size < limit and tokens[end - 1 - size] == tokens[-1 - size]:
            size += 1
        return size


_RULES: Mapping[str, Callable[[], _Rule]] = {"ngram": _LookUp, "suffix": _Suffixes}
