"""What others see of runs: their state, their end that is not stored yet, their events as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from outrider.errors import RunNotFound
from outrider.runs.record import Ending, Record

if TYPE_CHECKING:
    from outrider.runs.store import RunStore

#: Between two looks at a run; doubled while nothing comes, up to the second. Runs of this process say when there is
#: news.
_POLL_S = (0.5, 5.0)
_BATCH = 256


class RunReader:
    """The stored runs, and the ends that this process could not store yet."""

    def __init__(self, store: RunStore, owner: str) -> None:
        self.store = store
        self.owner = owner
        self.poll_s = _POLL_S
        self.unsaved: dict[str, Ending] = {}
        self._news: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    async def get(self, run: str, tenant: str | None) -> Record:
        """A run of the tenant, of any for None. RunNotFound, StoreUnavailable."""
        record = await self.store.get(run)
        is_old = record is not None and record.expires_at is not None and record.expires_at < time.time()
        if record is None or is_old or tenant not in (None, record.tenant):
            raise RunNotFound(f"there is no run {run}")
        return self._as_ended(record)

    def _as_ended(self, record: Record) -> Record:
        """With an end that is not stored yet, as long as the run is ours to end."""
        ending = self.unsaved.get(record.id)
        if ending is None or record.owner != self.owner:
            return record
        num_events = record.num_events + len(ending.events)
        return replace(record, status=ending.status, answer=ending.answer, error=ending.error, num_events=num_events)

    async def newest(self, tenant: str | None, limit: int, after: Record | None) -> list[Record]:
        """Runs of the tenant, of all for None, the newest first; those behind `after`. StoreUnavailable."""
        return [self._as_ended(record) for record in await self.store.newest(tenant, limit, after, time.time())]

    async def follow(self, run: str, after: int) -> AsyncGenerator[list[tuple[int, bytes]]]:
        """Events behind number `after` as they come, to the run's end; none now and then, while none come.

        StoreUnavailable.
        """
        first_s, most_s = self.poll_s
        poll_s = first_s
        while True:
            news = self._news.setdefault(run, asyncio.Event())
            if events := await self.store.events(run, after, _BATCH):
                after, poll_s = events[-1][0], first_s
                yield events
                continue
            try:
                record = await self.get(run, None)
            except RunNotFound:
                return  # deleted meanwhile
            if record.owner == self.owner and (ending := self.unsaved.get(run)) is not None:
                numbered = enumerate(ending.events, record.num_events - len(ending.events) + 1)
                yield [(number, data) for number, data in numbered if number > after]
                return
            if record.num_events > after:
                continue
            if record.is_over:
                return
            yield []
            with suppress(TimeoutError):
                async with asyncio.timeout(poll_s):
                    await news.wait()
            poll_s = min(2 * poll_s, most_s)

    def tell(self, run: str) -> None:
        """There is news of the run."""
        news = self._news.pop(run, None)
        if news is not None:
            news.set()
