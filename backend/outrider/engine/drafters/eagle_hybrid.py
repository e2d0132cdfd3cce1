"""Looks the text's end up first, and asks the head only where that finds less than the head usually gets right.

Only `outrider bench heads` drafts so: no engine offers it by a name.
"""

from __future__ import annotations

import torch

from outrider.engine.drafters.eagle import EagleDrafter
from outrider.engine.drafters.suffix import DEPTH
from outrider.speculation.proposal import Proposal, TopKTree
from outrider.suffixes import MAX_MATCH, SuffixAutomaton, best_growth

#: Drafts that a head is expected to get right before its first step, and the weight of each later step.
USUAL_GAIN, STEP_WEIGHT = 1.0, 0.1


class HybridDrafter:
    """After Arctic's rule: what the text repeats is free, so it goes first where it promises as much as the head.

    What the head gets right is learnt from earlier steps, before anything is drawn in this one.
    """

    def __init__(self, head: EagleDrafter, prompt_ids: tuple[int, ...]) -> None:
        self.points = head.points
        self._head = head
        self._own = SuffixAutomaton(DEPTH)
        self._own.extend(prompt_ids)
        self._tail = list(prompt_ids[-MAX_MATCH:])
        self._gain = USUAL_GAIN
        self._num_observed: int | None = None
        """Tokens committed since the head's last proposal; None when that was none of its."""

    def observe(self, token_id: int) -> None:
        """Both parts see the token; what a proposal of the head brought is counted."""
        self._head.observe(token_id)
        self._own.append(token_id)
        self._tail.append(token_id)
        del self._tail[:-MAX_MATCH]
        if self._num_observed is not None:
            self._num_observed += 1

    def observe_features(self, start: int, features: torch.Tensor) -> None:
        """See `FeatureDrafter`; the head's."""
        self._head.observe_features(start, features)

    @property
    def gain(self) -> float:
        """Drafts of a step that the head is expected to get right."""
        return self._gain

    def propose(self, k: int) -> Proposal:
        """The text's own repetition where that promises more than the head brought of late, else the head's."""
        if self._num_observed:
            self._gain += STEP_WEIGHT * (self._num_observed - 1 - self._gain)
        found = best_growth((self._own,), self._tail, k)
        if found.token_ids and found.score >= self._gain:
            self._num_observed = None
            return TopKTree(found.token_ids, found.parents)
        proposal = self._head.propose(k)
        # A head that drafts nothing, as while it reads a long prompt, got nothing wrong.
        self._num_observed = 0 if len(proposal) else None
        return proposal

    def free(self) -> None:
        """See `Drafter`."""
        self._head.free()
