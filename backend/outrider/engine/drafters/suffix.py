"""Suffix decoding: what most often followed the text's end, here and in earlier answers of the same key, is proposed.

After SuffixDecoding (arXiv 2411.04975). Every suffix of the text that occurred before is a candidate: a longer one
may propose more tokens, each token is weighed by how often it followed, and the tree with the highest expected number
of right tokens wins. The constants were tuned on greedy and warm answers of a small model to prompts of many kinds.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outrider.core import MAX_K
from outrider.engine.drafters.automaton import SuffixAutomaton
from outrider.speculation.proposal import PointMass, TopKTree

#: Longer matches than this are not told apart.
MAX_MATCH = 64
#: A match of m tokens is followed for at most DEPTH_PER_MATCHED * m tokens.
DEPTH_PER_MATCHED = 2
#: Occurrences of something else that a match of one token is assumed to have missed; of m tokens, an m-th of them.
DOUBT = 2.0
#: A path is not continued below this probability.
MIN_PROB = 0.1
#: Counts must reach as far as the longest match and its drafts.
DEPTH = MAX_MATCH + MAX_K


@dataclass(frozen=True, slots=True)
class Growth:
    """A tree grown from one match, and the sum of its nodes' path probabilities: the drafts expected to be right."""

    score: float = 0.0
    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()


def grow(automaton: SuffixAutomaton, state: int, length: int, k: int) -> Growth:
    """The `k` likeliest nodes after a match of `length` tokens, likeliest first; of equals the newest, then the elder
    parent's.

    No other tree of so many nodes has a higher score. Where one continuation is sure, it is a chain.
    """
    frontier: list[tuple[float, int, int, int, int, int]] = []

    def push(state: int, prob: float, parent: int, depth: int) -> None:
        if depth == DEPTH_PER_MATCHED * length:
            return
        followers = automaton.followers(state)
        total = sum(count for count, _, _, _ in followers) + DOUBT / (length + depth)
        for count, newest, token, target in followers:
            if (path_prob := prob * count / total) >= MIN_PROB:
                heapq.heappush(frontier, (-path_prob, -newest, parent, token, target, depth + 1))

    push(state, 1.0, -1, 0)
    score = 0.0
    tokens: list[int] = []
    parents: list[int] = []
    while frontier and len(tokens) < k:
        negative, _, parent, token, target, depth = heapq.heappop(frontier)
        score -= negative
        tokens.append(token)
        parents.append(parent)
        push(target, -negative, len(tokens) - 1, depth)
    return Growth(score, tuple(tokens), tuple(parents))


def best_growth(automata: Iterable[SuffixAutomaton], tail: Sequence[int], k: int) -> Growth:
    """The best over all automata and suffixes of `tail`; of equals the first automaton's, of these the longest's."""
    best = Growth()
    for automaton in automata:
        for state, length in automaton.matches(tail):
            # Nodes of one depth add at most 1 together, so shorter matches can be hopeless.
            if min(k, DEPTH_PER_MATCHED * length) > best.score:
                best = max(best, grow(automaton, state, length, k), key=lambda growth: growth.score)
    return best


@dataclass(slots=True)
class _Answers:
    """Earlier answers of one key, in two generations: when the newer one is full, it takes the place of the older."""

    newer: SuffixAutomaton = field(default_factory=lambda: SuffixAutomaton(DEPTH))
    older: SuffixAutomaton = field(default_factory=lambda: SuffixAutomaton(DEPTH))

    @property
    def num_tokens(self) -> int:
        return self.newer.num_tokens + self.older.num_tokens


class SuffixStore:
    """Earlier answers by key, bounded in tokens (half a KB each): the key that was used longest ago goes first."""

    def __init__(self, max_tokens: int = 65536, max_generation: int = 16384) -> None:
        self._max_tokens = max_tokens
        self._max_generation = max_generation
        self._by_key: OrderedDict[str, _Answers] = OrderedDict()

    @property
    def num_tokens(self) -> int:
        return sum(answers.num_tokens for answers in self._by_key.values())

    def automata(self, key: str) -> tuple[SuffixAutomaton, ...]:
        """What this key has learnt; nothing for an unknown key, and never anything of another."""
        answers = self._by_key.get(key)
        if answers is None:
            return ()
        self._by_key.move_to_end(key)
        return answers.newer, answers.older

    def add(self, key: str, answer: Sequence[int]) -> None:
        """Learn an answer; of one longer than a generation its end."""
        answer = answer[-self._max_generation :]
        answers = self._by_key.setdefault(key, _Answers())
        self._by_key.move_to_end(key)
        if answers.newer.num_tokens + len(answer) > self._max_generation:
            answers.older, answers.newer = answers.newer, SuffixAutomaton(DEPTH)
        answers.newer.start_sequence()
        answers.newer.extend(answer)
        while self.num_tokens > self._max_tokens and len(self._by_key) > 1:
            self._by_key.popitem(last=False)


class SuffixDrafter:
    """This request's own text, and with a key the store's answers. Without a key it neither reads nor writes them."""

    def __init__(self, prompt_ids: Sequence[int], store: SuffixStore, key: str) -> None:
        self._store = store
        self._key = key
        self._own = SuffixAutomaton(DEPTH)
        self._own.extend(prompt_ids)
        self._tail = list(prompt_ids[-MAX_MATCH:])
        self._answer: list[int] = []

    def observe(self, token_id: int) -> None:
        self._own.append(token_id)
        self._answer.append(token_id)
        self._tail.append(token_id)
        del self._tail[:-MAX_MATCH]

    def propose(self, k: int) -> PointMass | TopKTree:
        """The `k` likeliest nodes; a chain when they follow one another, which needs no mask of its own."""
        shared = self._store.automata(self._key) if self._key else ()
        best = best_growth((self._own, *shared), self._tail, k)
        chain = PointMass(best.token_ids)
        return chain if best.parents == chain.parents else TopKTree(best.token_ids, best.parents)

    def free(self) -> None:
        if self._key and self._answer:
            self._store.add(self._key, self._answer)
