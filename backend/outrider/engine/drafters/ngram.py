"""Prompt look-up: what followed the longest earlier occurrence of the text's last tokens is proposed again."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from operator import mul

from outrider.speculation.proposal import NO_DRAFT, PointMass
from outrider.suffixes import Doubt, Growth

#: A single shared token says too little; a pair is where look-up starts.
MIN_MATCH = 2
#: Longer matches than this do not change the choice.
MAX_MATCH = 32
#: Draft tokens per matched token. A short match is right less often, so it is trusted for fewer tokens; on greedy
#: text of a small model, two per matched token lost least over code, maths, chat and quotes.
DRAFTS_PER_MATCHED = 2
#: Newest occurrences of a pair that are compared; keeps a step short in text that repeats one pair endlessly.
MAX_CANDIDATES = 32


class NgramDrafter:
    """Longest suffix match in prompt and output; among equally long matches the newest wins.

    How much it proposes depends on the committed text alone, so dropping the rest biases nothing.
    """

    def __init__(self, prompt_ids: Iterable[int]) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, int], list[int]] = {}
        """For each pair of neighbours, the positions right behind its occurrences, oldest first."""
        self._doubt = Doubt()
        for token_id in prompt_ids:
            self.observe(token_id)

    def observe(self, token_id: int) -> None:
        """See `Drafter`."""
        self._doubt.observe(token_id)
        if self._tokens:
            self._ends.setdefault((self._tokens[-1], token_id), []).append(len(self._tokens) + 1)
        self._tokens.append(token_id)

    def propose(self, k: int) -> PointMass:
        """What followed the longest earlier match of the text's end."""
        tokens = self._tokens
        if k < 1 or len(tokens) <= MIN_MATCH:
            return NO_DRAFT
        # The newest occurrence of the last pair is the text's own end.
        ends = self._ends[(tokens[-2], tokens[-1])][-MAX_CANDIDATES - 1 : -1]
        if not ends:
            return NO_DRAFT
        length, best = max((self._match_length(end), end) for end in ends)
        token_ids = self._continuation(best, min(k, DRAFTS_PER_MATCHED * length))
        # Each token that is right makes the match longer by one.
        hazards = (n / (n + self._doubt.value) for n in range(length, length + len(token_ids)))
        proposal = PointMass(token_ids, tuple(accumulate(hazards, mul)))
        self._doubt.expect(Growth(0.0, token_ids, proposal.parents, length=length))
        return proposal

    def free(self) -> None:
        """Nothing to give back."""

    def _match_length(self, end: int) -> int:
        """How many tokens before `end` equal the text's last tokens."""
        tokens = self._tokens
        size = MIN_MATCH
        limit = min(MAX_MATCH, end)
        while size < limit and tokens[end - 1 - size] == tokens[-1 - size]:
            size += 1
        return size

    def _continuation(self, end: int, k: int) -> tuple[int, ...]:
        """Tokens from `end` on; where they run into the text's end, the repeated stretch is assumed to go on."""
        period = len(self._tokens) - end
        return tuple(self._tokens[end + i % period] for i in range(k))
