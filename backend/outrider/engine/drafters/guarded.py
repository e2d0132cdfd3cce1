"""The boundary around a drafter: whatever fails inside it, its request goes on, without drafts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from outrider.engine.drafters import Drafter, FeatureDrafter
from outrider.speculation.proposal import NO_DRAFT, Proposal, SampledChain, SampledTree

log = logging.getLogger(__name__)

_ResultT = TypeVar("_ResultT")
_OtherT = TypeVar("_OtherT")

#: How far the sum of a draft law may be from 1.
_LAW_ERROR = 1e-6


class GuardedDrafter:
    """A drafter that cannot fail. After its first failure the drafter inside is freed and never asked again."""

    def __init__(self, make: Callable[[], Drafter], vocab_size: int) -> None:
        self.num_failures = 0
        self._vocab_size = vocab_size
        self._inner: Drafter | None = None
        self._reader: FeatureDrafter | None = None
        """The same, where it reads states; found out once, for that takes as long as some proposals."""
        self._inner = inner = self._guard(make, None)
        if isinstance(inner, FeatureDrafter):
            self._reader = inner

    @property
    def points(self) -> tuple[int, ...]:
        """Of the target's states that it reads now: none after a failure, and none for most drafters."""
        return () if self._reader is None else self._reader.points

    def observe_features(self, start: int, features: torch.Tensor) -> None:
        """See `FeatureDrafter`; nothing where the drafter reads no states."""
        reader = self._reader
        if reader is not None:
            self._guard(lambda: reader.observe_features(start, features), None)

    def observe(self, token_id: int) -> None:
        """See `Drafter`."""
        inner = self._inner
        if inner is not None:
            self._guard(lambda: inner.observe(token_id), None)

    def propose(self, k: int) -> Proposal:
        """See `Drafter`; nothing from one that has failed, and nothing that breaks the protocol."""
        inner = self._inner
        if inner is None or k < 1:
            return NO_DRAFT
        return self._guard(lambda: self._checked(inner.propose(k), k), NO_DRAFT)

    def free(self) -> None:
        """See `Drafter`."""
        inner, self._inner, self._reader = self._inner, None, None
        if inner is not None:
            self._guard(inner.free, None)

    def _checked(self, proposal: Proposal, k: int) -> Proposal:
        """A proposal that the step can take; anything else would fail it for all, or bend a text's law."""
        if len(proposal) > k or not all(0 <= token < self._vocab_size for token in proposal.token_ids):
            raise ValueError(f"not at most {k} tokens below {self._vocab_size}: {proposal.token_ids}")
        if isinstance(proposal, SampledChain | SampledTree):
            _check_laws(proposal, self._vocab_size)
        elif proposal.chances is not None:
            above = [1.0 if parent < 0 else proposal.chances[parent] for parent in proposal.parents]
            if not all(0.0 <= chance <= most for chance, most in zip(proposal.chances, above, strict=True)):
                raise ValueError(f"a node's chance lies between 0 and its parent's: {proposal.chances}")
        return proposal

    def _guard(self, action: Callable[[], _ResultT], otherwise: _OtherT) -> _ResultT | _OtherT:
        try:
            return action()
        except Exception:  # a drafter only makes a request faster, so no fault of one may end the request
            log.warning("a drafter failed; its request goes on without drafts", exc_info=True)
            self.num_failures += 1
            self.free()
            return otherwise


def _check_laws(proposal: SampledChain | SampledTree, vocab_size: int) -> None:
    """ValueError unless rows are laws over this vocabulary and every token can have been drawn from its own."""
    rows = range(len(proposal)) if isinstance(proposal, SampledChain) else [p + 1 for p in proposal.parents]
    laws, places = proposal.draft_probs, list(zip(rows, proposal.token_ids, strict=True))
    if laws.shape[1] != vocab_size or not bool(((laws.sum(dim=1) - 1.0).abs() < _LAW_ERROR).all()):
        raise ValueError(f"rows of {list(laws.shape)} are no laws over {vocab_size} tokens")
    if len(set(places)) < len(places) or not all(float(laws[row, token]) > 0.0 for row, token in places):
        raise ValueError(f"tokens {proposal.token_ids} cannot have been drawn from their laws")
