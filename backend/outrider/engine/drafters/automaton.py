"""A suffix automaton over token sequences that also counts: every substring, how often it occurs, and where last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
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
