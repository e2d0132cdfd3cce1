"""Looks the text's end up first, and asks the head only where that finds less than the head usually gets right."""

from __future__ import annotations

import torch

from outrider.engine.drafters import FeatureDrafter
from outrider.engine.drafters.suffix import SuffixDrafter
from outrider.speculation.proposal import Proposal, TopKTree

#: Drafts that a head is expected to get right before its first step, and the weight of each later step.
USUAL_GAIN, STEP_WEIGHT = 1.0, 0.1


class HybridDrafter:
    """After Arctic's rule: what the text repeats is free, so it goes first where it promises as much as the head.

    What the head gets right is learnt from earlier steps, before anything is drawn in this one. Both parts see every
    token, and the head every state, so that either can draft the next step.
    """

    def __init__(self, head: FeatureDrafter, text: SuffixDrafter) -> None:
        self.points = head.points
        self._head = head
        self._text = text
        self._gain = USUAL_GAIN
        self._num_observed: int | None = None
        """Tokens committed since the head's last proposal; None when that was none of its."""

    def observe(self, token_id: int) -> None:
        """Both parts see the token; what a proposal of the head brought is counted."""
        self._head.observe(token_id)
        self._text.observe(token_id)
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
        """The text's own repetition where that promises more than the head brought of late, else the head's; also
        where the head has nothing, as while it reads a long prompt."""
        if self._num_observed:
            self._gain += STEP_WEIGHT * (self._num_observed - 1 - self._gain)
        self._num_observed = None
        found = self._text.grow(k)
        if found.score < self._gain or not found.token_ids:
            proposal = self._head.propose(k)
            if len(proposal):
                self._num_observed = 0
                return proposal
        return TopKTree(found.token_ids, found.parents, found.chances)

    def free(self) -> None:
        """See `Drafter`."""
        self._head.free()
        self._text.free()
