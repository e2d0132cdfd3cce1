"""The boundary around a drafter: whatever fails inside it, its request goes on, without drafts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from outrider.engine.drafters import Drafter, FeatureDrafter
from outrider.speculation.proposal import NO_DRAFT, Proposal

log = logging.getLogger(__name__)

_ResultT = TypeVar("_ResultT")
_OtherT = TypeVar("_OtherT")


class GuardedDrafter:
    """A drafter that cannot fail. After its first failure the drafter inside is freed and never asked again."""

    def __init__(self, make: Callable[[], Drafter], vocab_size: int) -> None:
        self.num_failures = 0
        self._vocab_size = vocab_size
        self._inner: Drafter | None = None
        self._inner = self._guard(make, None)

    @property
    def points(self) -> tuple[int, ...]:
        """Of the target's states that it reads now: none after a failure, and none for most drafters."""
        return self._inner.points if isinstance(self._inner, FeatureDrafter) else ()

    def observe_features(self, start: int, features: torch.Tensor) -> None:
        """See `FeatureDrafter`; nothing where the drafter reads no states."""
        inner = self._inner
        if isinstance(inner, FeatureDrafter):
            self._guard(lambda: inner.observe_features(start, features), None)

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
        inner, self._inner = self._inner, None
        if inner is not None:
            self._guard(inner.free, None)

    def _checked(self, proposal: Proposal, k: int) -> Proposal:
        """A proposal that the target's forward pass can take; anything else would fail the whole step."""
        if len(proposal) > k or not all(0 <= token < self._vocab_size for token in proposal.token_ids):
            raise ValueError(f"not at most {k} tokens below {self._vocab_size}: {proposal.token_ids}")
        return proposal

    def _guard(self, action: Callable[[], _ResultT], otherwise: _OtherT) -> _ResultT | _OtherT:
        try:
            return action()
        except Exception:  # a drafter only makes a request faster, so no fault of one may end the request
            log.warning("a drafter failed; its request goes on without drafts", exc_info=True)
            self.num_failures += 1
            self.free()
            return otherwise
