"""The caller's prediction of the answer as draft, followed from its beginning and found again after a divergence."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from outrider.speculation.proposal import NO_DRAFT, PointMass

#: Longer matches than this do not change the choice.
MAX_MATCH = 32
#: A single shared token says little, except this near to where the text left the prediction.
NEAR = 16
#: Occurrences of the newest token that are compared, nearest first; keeps a step short in repetitive predictions.
MAX_CANDIDATES = 64


class PredictionDrafter:
    """Follows the prediction token by token.

    A token that differs is taken for a replacement of one predicted token, or, when it stands at one place not far
    ahead, for the end of a gap. After a second one in a row the text goes on behind the place of the prediction that
    ends with the longest run of the text's last tokens, nearest to where it was left; without one the place is lost
    until a later look-up. A first one is not looked up so: in a text that repeats itself every place has its likes,
    and each difference would lead to another of them.
    """

    def __init__(self, prediction_ids: Sequence[int]) -> None:
        self._prediction = prediction_ids
        self._answer: list[int] = []
        self._at = 0
        """Index of the predicted token that should come next."""
        self._num_misses = 0
        """Tokens in a row that neither were predicted nor found."""
        self._ends: dict[int, list[int]] = {}
        """For each token, the indices right behind its occurrences, ascending."""
        for index, token_id in enumerate(prediction_ids):
            self._ends.setdefault(token_id, []).append(index + 1)

    def observe(self, token_id: int) -> None:
        """Follows the prediction, or looks for where the answer takes it up again."""
        self._answer.append(token_id)
        is_followed = self._num_misses < 2 and self._at < len(self._prediction)
        if is_followed and self._prediction[self._at] == token_id:
            self._at += 1
            self._num_misses = 0
            return
        found = self._look_up(token_id) if self._num_misses else self._behind_gap(token_id)
        if found is not None:
            self._at, self._num_misses = found, 0
            return
        self._num_misses += 1
        if self._num_misses == 1:
            self._at = min(self._at + 1, len(self._prediction))

    def propose(self, k: int) -> PointMass:
        """The prediction from where the answer stands; nothing once it has left it."""
        if self._num_misses > 1:
            return NO_DRAFT
        return PointMass(tuple(self._prediction[self._at : self._at + k]))

    def free(self) -> None:
        """Nothing to give back."""

    def _behind_gap(self, token_id: int) -> int | None:
        """Behind the only place ahead where this token stands; None when there are more or it is far."""
        ends = self._ends.get(token_id, [])
        ahead = ends[bisect_right(ends, self._at) :]
        return ahead[0] if len(ahead) == 1 and ahead[0] - self._at <= NEAR else None

    def _look_up(self, token_id: int) -> int | None:
        """Where the prediction goes on after the text's last tokens; None when too little agrees."""
        ends = self._ends.get(token_id, [])
        middle = bisect_left(ends, self._at)
        nearest = ends[max(0, middle - MAX_CANDIDATES // 2) : middle + MAX_CANDIDATES // 2]
        if not nearest:
            return None
        length, distance, end = max((self._match_length(end), -abs(end - self._at), end) for end in nearest)
        return end if length > 1 or -distance <= NEAR else None

    def _match_length(self, end: int) -> int:
        """How many tokens before `end` equal the text's last tokens."""
        size = 1
        limit = min(MAX_MATCH, end, len(self._answer))
        while size < limit and self._prediction[end - 1 - size] == self._answer[-1 - size]:
            size += 1
        return size
