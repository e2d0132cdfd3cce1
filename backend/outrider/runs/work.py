"""The seam between the book of runs and those who know what runs are about: what work is, and what it writes to."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from outrider.errors import APIError, GatewayStopped, Rejected, RequestError
from outrider.runs.record import Ending, Record

if TYPE_CHECKING:
    from outrider.runs.store import RunStore


class RunLost(RequestError, status=409, code="run_lost"):
    """The run is not ours any more. Its worker's affair alone: no client is told."""


class Writer:
    """What a run's work writes to."""

    def __init__(self, store: RunStore, run: str, owner: str, on_news: Callable[[str], None]) -> None:
        self._store = store
        self._run = run
        self._owner = owner
        self._on_news = on_news
        self.has_begun = False
        """From here on the run is not tried again."""

    async def begin(self) -> None:
        """Before anything is sent to a lane. RunLost when the run is not ours any more."""
        self.has_begun = True
        if not await self._store.begin(self._run, self._owner, time.time()):
            raise RunLost("the run was deleted, or another gateway has taken it up")

    async def write(self, events: list[bytes]) -> None:
        """Keep events; they are seen by others when this returns. RunLost when the run is not ours any more."""
        if not await self._store.append(self._run, self._owner, events, time.time()):
            raise RunLost("the run was deleted, or another gateway has taken it up")
        self._on_news(self._run)


Work = Callable[[Writer], Awaitable[Ending]]


class Worker(Protocol):
    """Who knows what runs are about."""

    async def prepare(self, record: Record) -> Work:
        """The work of a run that another process left in the queue."""

    def error_event(self, record: Record, error: APIError) -> bytes:
        """How the run's route tells a failure in a stream."""


def cancelled() -> Rejected:
    """What a client is told of a run that somebody cancelled."""
    return Rejected("the run was cancelled", status=409, code="run_cancelled")


def stopped() -> GatewayStopped:
    """What a client is told of a run that ended with the gateway."""
    return GatewayStopped("the gateway stopped while the run was in progress")
