"""Admission: how many requests are at lanes, and who waits for a place, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider.config import AdmissionSection
from outrider.errors import QueueFull, QueueTimeout

_RETRY_AFTER_S = 1.0

_Place = asyncio.Future[None]


class Admission:
    """A bounded number of places and a bounded queue for them. Decisions are plain methods; only `slot` waits."""

    def __init__(self, limits: AdmissionSection) -> None:
        self._limits = limits
        self._queue: deque[_Place] = deque()
        self.num_in_flight = 0

    def __repr__(self) -> str:
        return f"<Admission {self.num_in_flight} in flight, {self.num_queued} queued>"

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    def enter(self) -> _Place | None:
        """Take a place at once (None), or queue for one (a future that is done when it is ours).

        QueueFull when the queue is at its limit.
        """
        if self.num_in_flight < self._limits.max_in_flight and not self._queue:
            self.num_in_flight += 1
            return None
        if self.num_queued >= self._limits.max_queued:
            raise QueueFull(f"{self.num_queued} requests are waiting already", retry_after_s=_RETRY_AFTER_S)
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        return place

    def leave(self) -> None:
        """Give the place to the first in the queue, or free it."""
        if self._queue:
            self._queue.popleft().set_result(None)
        else:
            self.num_in_flight -= 1

    def give_up(self, place: _Place) -> None:
        """Stop waiting; a place that was given in this very moment goes on to the next."""
        if place.done():
            self.leave()
        else:
            self._queue.remove(place)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a place for the block. QueueFull, or QueueTimeout after `queue_timeout_s` in the queue."""
        place = self.enter()
        if place is not None:
            await self._wait(place)
        try:
            yield
        finally:
            self.leave()

    async def _wait(self, place: _Place) -> None:
        limit_s = self._limits.queue_timeout_s
        try:
            # Not `wait_for`: it would cancel the future, whose result says who has the place.
            await asyncio.wait([place], timeout=limit_s)
        except asyncio.CancelledError:
            self.give_up(place)
            raise
        if not place.done():
            self.give_up(place)
            raise QueueTimeout(f"no place became free within {limit_s:g} s", retry_after_s=_RETRY_AFTER_S)
