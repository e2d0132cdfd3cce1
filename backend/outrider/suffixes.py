"""What most often followed a text's end: a suffix automaton over tokens, and the trees of drafts that grow from it.

After SuffixDecoding (arXiv 2411.04975). Every suffix of the text that occurred before is a candidate: a longer one
may propose more tokens, each token is weighed by how often it followed, and the tree with the highest expected number
of right tokens wins. The constants were tuned on greedy and warm answers of a small model to prompts of many kinds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

#: Longer matches than this are not told apart.
MAX_MATCH = 64
#: A match of m tokens is followed for at most DEPTH_PER_MATCHED * m tokens.
DEPTH_PER_MATCHED = 2
#: Occurrences of something else that a match of one token is assumed to have missed before any was seen; of m tokens,
#: an m-th of them.
DOUBT = 2.0
#: A path is not continued below this probability.
MIN_PROB = 0.1
ROOT = 0
_NONE = -1


class SuffixAutomaton:
    """Online suffix automaton (Blumer et al. 1985) of several sequences, with occurrence counts.

    A state stands for substrings that end at the same places; `link` leads to the next shorter suffix that ends in
    more places. Counts are exact for substrings of at most `depth` tokens. A token costs amortised constant time for
    the automaton and one step per distinct state among the last `depth` tokens' suffixes for the counts.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._next: list[dict[int, int]] = [{}]
        self._link = [_NONE]
        self._length = [0]
        """Longest substring of each state."""
        self._count = [0]
        self._newest = [0]
        """Position of each state's newest occurrence, over all sequences in the order in which they came."""
        self._last = ROOT
        self._window, self._window_length = ROOT, 0
        self.num_tokens = 0

    def start_sequence(self) -> None:
        """The next token begins a new sequence: no substring spans the boundary."""
        self._last = self._window = ROOT
        self._window_length = 0

    def extend(self, tokens: Iterable[int]) -> None:
        """Append them one by one."""
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """One token more at the end of the text."""
        self._last = self._step(self._last, token)
        window = self._settle(self._window, self._window_length)
        self._window_length = min(self._window_length + 1, self._depth)
        self._window = self._settle(self._next[window][token], self._window_length)
        self.num_tokens += 1
        state = self._window
        while state != ROOT:
            self._count[state] += 1
            self._newest[state] = self.num_tokens
            state = self._link[state]
        self._count[ROOT] += 1

    def _step(self, last: int, token: int) -> int:
        """The state of the whole sequence so far followed by `token`."""
        known = self._next[last].get(token)
        if known is not None:  # another sequence has been here
            return self._split(last, known, token)
        new = self._new_state(self._length[last] + 1, ROOT)
        state = last
        while state != _NONE and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state != _NONE:
            self._link[new] = self._split(state, self._next[state][token], token)
        return new

    def _split(self, state: int, target: int, token: int) -> int:
        """The state of `state`'s longest substring followed by `token`, made its own if `target` has longer ones."""
        if self._length[target] == self._length[state] + 1:
            return target
        clone = self._new_state(self._length[state] + 1, self._link[target])
        self._next[clone].update(self._next[target])
        self._count[clone], self._newest[clone] = self._count[target], self._newest[target]
        self._link[target] = clone
        while state != _NONE and self._next[state].get(token) == target:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _new_state(self, length: int, link: int) -> int:
        self._next.append({})
        self._length.append(length)
        self._link.append(link)
        self._count.append(0)
        self._newest.append(0)
        return len(self._next) - 1

    def _settle(self, state: int, length: int) -> int:
        """The state of a suffix of `length` tokens, given one that had it before splits or cuts."""
        while state != ROOT and self._length[self._link[state]] >= length:
            state = self._link[state]
        return state

    def matches(self, tail: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Suffixes of `tail` that occur here, longest first: (state, length), one for each distinct state."""
        state, length = ROOT, 0
        for token in tail:
            while state != ROOT and token not in self._next[state]:
                state = self._link[state]
                length = self._length[state]
            if token in self._next[state]:
                state, length = self._next[state][token], length + 1
        while state != ROOT:
            yield state, length
            state = self._link[state]
            length = self._length[state]

    def followers(self, state: int) -> list[tuple[int, int, int, int]]:
        """What followed a state's substrings: (how often, newest position, token, next state)."""
        return [(self._count[to], self._newest[to], token, to) for token, to in self._next[state].items()]


@dataclass(frozen=True, slots=True)
class Growth:
    """A tree grown from one match."""

    score: float = 0.0
    """The drafts expected to be right: the sum of its nodes' path probabilities."""
    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    """Of each node to be what follows, by what is known of this text; the probabilities are as of any text."""
    length: int = 0
    """Of the match, in tokens."""


_NOTHING = Growth()


class Doubt:
    """How many occurrences of something else a match of one token has missed, learnt of one text.

    A match of m tokens misses in about `value` / m of all cases, so the estimate is how often a proposal was wrong
    over the sum of 1 / m of all tokens that were looked at, whether they were verified or not. Texts differ in it by
    far more than their matches do: quotes by a factor of ten from prose.
    """

    def __init__(self) -> None:
        self._num_wrong, self._weight = DOUBT, 1.0
        self._growth = _NOTHING
        self._node, self._depth = -1, 0
        """Where in it the text stands."""

    @property
    def value(self) -> float:
        """As it is known now."""
        return self._num_wrong / self._weight

    def expect(self, growth: Growth) -> Growth:
        """The same: what is observed from now on is held against it."""
        self._growth, self._node, self._depth = growth, -1, 0
        return growth

    def observe(self, token: int) -> None:
        """One token more at the end of the text."""
        growth = self._growth
        if growth is _NOTHING:
            return
        children = [node for node, parent in enumerate(growth.parents) if parent == self._node]
        if not children:
            self._growth = _NOTHING
            return
        self._weight += 1.0 / (growth.length + self._depth)
        right = next((node for node in children if growth.token_ids[node] == token), None)
        if right is None:
            self._num_wrong += 1.0
            self._growth = _NOTHING
        else:
            self._node, self._depth = right, self._depth + 1


def grow(automaton: SuffixAutomaton, state: int, length: int, k: int, doubt: float = DOUBT) -> Growth:
    """The `k` likeliest nodes after a match of `length` tokens, likeliest first; of equals the newest, then the elder
    parent's.

    No other tree of so many nodes has a higher score. Where one continuation is sure, it is a chain. Only its chances
    depend on `doubt`: what is proposed follows from the text, and not from what was proposed before.
    """
    frontier: list[tuple[float, int, int, int, int, int, float]] = []

    def push(state: int, prob: float, chance: float, parent: int, depth: int) -> None:
        if depth == DEPTH_PER_MATCHED * length:
            return
        followers = automaton.followers(state)
        num_seen = sum(count for count, _, _, _ in followers)
        total, told = (num_seen + missed / (length + depth) for missed in (DOUBT, doubt))
        for count, newest, token, target in followers:
            if (path_prob := prob * count / total) >= MIN_PROB:
                entry = (-path_prob, -newest, parent, token, target, depth + 1, chance * count / told)
                heapq.heappush(frontier, entry)

    push(state, 1.0, 1.0, -1, 0)
    score = 0.0
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    while frontier and len(tokens) < k:
        negative, _, parent, token, target, depth, chance = heapq.heappop(frontier)
        score -= negative
        tokens.append(token)
        parents.append(parent)
        chances.append(chance)
        push(target, -negative, chance, len(tokens) - 1, depth)
    return Growth(score, tuple(tokens), tuple(parents), tuple(chances), length)


def best_growth(automata: Iterable[SuffixAutomaton], tail: Sequence[int], k: int, doubt: float = DOUBT) -> Growth:
    """The best over all automata and suffixes of `tail`; of equals the first automaton's, of these the longest's."""
    best = Growth()
    for automaton in automata:
        for state, length in automaton.matches(tail):
            # Nodes of one depth add at most 1 together, so shorter matches can be hopeless.
            if min(k, DEPTH_PER_MATCHED * length) > best.score:
                best = max(best, grow(automaton, state, length, k, doubt), key=lambda growth: growth.score)
    return best
