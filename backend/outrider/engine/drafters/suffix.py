"""Suffix decoding: proposes what most often followed the text's end, here and in earlier answers of the same key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.core import MAX_K
from outrider.speculation.proposal import PointMass, TopKTree
from outrider.suffixes import MAX_MATCH, Doubt, Growth, SuffixAutomaton, best_growth

#: Counts must reach as far as the longest match and its drafts.
DEPTH = MAX_MATCH + MAX_K


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
        self.num_tokens = 0
        """Of all answers that are kept."""

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
        self.num_tokens -= answers.num_tokens
        if answers.newer.num_tokens + len(answer) > self._max_generation:
            answers.older, answers.newer = answers.newer, SuffixAutomaton(DEPTH)
        answers.newer.start_sequence()
        answers.newer.extend(answer)
        self.num_tokens += answers.num_tokens
        while self.num_tokens > self._max_tokens and len(self._by_key) > 1:
            self.num_tokens -= self._by_key.popitem(last=False)[1].num_tokens


class SuffixDrafter:
    """This request's own text, and with a key the store's answers. Without a key it neither reads nor writes them."""

    def __init__(self, prompt_ids: Sequence[int], store: SuffixStore, key: str) -> None:
        self._store = store
        self._key = key
        self._own = SuffixAutomaton(DEPTH)
        self._own.extend(prompt_ids)
        self._tail = list(prompt_ids[-MAX_MATCH:])
        self._answer: list[int] = []
        self._doubt = Doubt()

    def observe(self, token_id: int) -> None:
        """See `Drafter`."""
        self._doubt.observe(token_id)
        self._own.append(token_id)
        self._answer.append(token_id)
        self._tail.append(token_id)
        del self._tail[:-MAX_MATCH]

    def grow(self, k: int) -> Growth:
        """The `k` likeliest nodes, with the number of drafts that are expected to be right."""
        shared = self._store.automata(self._key) if self._key else ()
        return self._doubt.expect(best_growth((self._own, *shared), self._tail, k, self._doubt.value))

    def propose(self, k: int) -> PointMass | TopKTree:
        """The `k` likeliest nodes; a chain when they follow one another, which needs no mask of its own."""
        best = self.grow(k)
        chain = PointMass(best.token_ids, best.chances)
        return chain if best.parents == chain.parents else TopKTree(best.token_ids, best.parents, best.chances)

    def free(self) -> None:
        """The answer is kept for later ones of the same key."""
        if self._key and self._answer:
            self._store.add(self._key, self._answer)
