"""The runs of one process: begins, resumes, cancels and ends them. Everything that others may see is in the store."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from outrider.config import RunsSection
from outrider.errors import (
    APIError,
    InternalError,
    LaneUnavailable,
    QueueFull,
    QueueTimeout,
    RateLimited,
    RunNotFound,
    StoreUnavailable,
)
from outrider.runs.record import Ending, Record, Status
from outrider.runs.work import Work, Worker, Writer, cancelled, stopped

if TYPE_CHECKING:
    from outrider.runs.store import RunStore

logger = logging.getLogger(__name__)

_RETRY_S = 0.5
#: How often the runs of other processes are looked at; those of our own say when there is news.
_POLL_S = 0.5
_BATCH = 256
#: What a run that was accepted waits for, as long as it has not begun.
_PASSING = (LaneUnavailable, QueueFull, QueueTimeout, RateLimited)


@dataclass(slots=True, eq=False)
class _Entry:
    """An open run of this process."""

    record: Record
    writer: Writer
    work: Work | None
    is_accepted: bool
    is_cancelling: bool = False
    refusal: APIError | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class RunBook:
    """Use `looked_after` around the life of the process."""

    def __init__(self, store: RunStore, section: RunsSection, worker: Worker) -> None:
        self.store = store
        self._section = section
        self._worker = worker
        self._owner = f"{socket.gethostname()[:40]}:{os.getpid()}:{token_hex(4)}"
        self._entries: dict[str, _Entry] = {}
        self._unsaved: dict[str, Ending] = {}
        self._unwanted: set[str] = set()
        self._tails: set[asyncio.Task[None]] = set()
        self._news: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<RunBook {self._owner} {len(self._entries)} open, {len(self._unsaved)} unsaved>"

    @asynccontextmanager
    async def looked_after(self) -> AsyncIterator[None]:
        """Take up what was left, and at the end fail what has begun and leave the rest to the next process."""
        await self.store.open()
        regular = asyncio.create_task(self._look_after())
        try:
            yield
        finally:
            regular.cancel()
            tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(regular, *tasks, *self._tails, return_exceptions=True)
            with suppress(StoreUnavailable):
                await self.store.release(self._owner)
            await self.store.close()

    async def create(self, record: Record, work: Work) -> Record:
        """Keep the run, then begin it. What a request would be refused for at once is raised, and nothing is kept.

        QueueFull at the limit of open runs; StoreUnavailable.
        """
        if len(self._entries) >= self._section.max_open:
            raise QueueFull(f"{len(self._entries)} runs are open already", retry_after_s=1.0)
        record = replace(record, owner=self._owner, beat_at=time.time())
        try:
            await self.store.add(record)
        except StoreUnavailable:
            self._unwanted.add(record.id)  # it may still be written when the store answers again
            raise
        entry = self._start(record, work, is_accepted=False)
        await asyncio.sleep(0)  # its first step goes to where it first waits: in the queue, or for the store
        entry.is_accepted = True
        if entry.refusal is not None:
            self._unwanted.add(record.id)
            await self._sweep()
            raise entry.refusal
        return record

    async def keep(self, record: Record) -> None:
        """A run that has ended already. StoreUnavailable."""
        now = time.time()
        await self.store.add(replace(record, ended_at=now, expires_at=now + self._section.keep_s))

    async def get(self, run: str, tenant: str | None) -> Record:
        """A run of the tenant, of any for None. RunNotFound, StoreUnavailable."""
        record = await self.store.get(run)
        is_old = record is not None and record.expires_at is not None and record.expires_at < time.time()
        if record is None or is_old or tenant not in (None, record.tenant):
            raise RunNotFound(f"there is no run {run}")
        return self._as_ended(record)

    def _as_ended(self, record: Record) -> Record:
        """With an end that is not stored yet."""
        ending = self._unsaved.get(record.id)
        if ending is None or record.is_over:
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
        while True:
            news = self._news.setdefault(run, asyncio.Event())
            if events := await self.store.events(run, after, _BATCH):
                after = events[-1][0]
                yield events
                continue
            try:
                record = await self.get(run, None)
            except RunNotFound:
                return  # deleted meanwhile
            if (ending := self._unsaved.get(run)) is not None:
                numbered = enumerate(ending.events, record.num_events - len(ending.events) + 1)
                yield [(number, data) for number, data in numbered if number > after]
                return
            if record.num_events > after:
                continue
            if record.is_over:
                return
            yield []
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await news.wait()

    async def cancel(self, record: Record) -> None:
        """End it; what has ended stays as it is. A run of another process ends when that one has seen it."""
        entry = self._entries.get(record.id)
        if entry is None:
            await self.store.ask_cancel(record.id)
            return
        entry.is_cancelling = True
        if entry.task is not None:
            entry.task.cancel()
            await asyncio.wait([entry.task])
        await self._end(record, self._failure(record, cancelled(), "cancelled"))

    async def delete(self, record: Record) -> None:
        """Cancel it and forget it."""
        if not record.is_over:
            await self.cancel(record)
        await self.store.delete(record.id)
        self._unsaved.pop(record.id, None)
        self._tell(record.id)

    def _start(self, record: Record, work: Work | None, *, is_accepted: bool) -> _Entry:
        entry = _Entry(record, Writer(self.store, record.id, self._owner, self._tell), work, is_accepted)
        self._entries[record.id] = entry
        entry.task = asyncio.create_task(self._drive(entry), name=f"run {record.id}")
        entry.task.add_done_callback(lambda task: self._left(entry, task))
        return entry

    def _left(self, entry: _Entry, task: asyncio.Task[None]) -> None:
        """A fault of ours must not leave a run open for ever."""
        self._entries.pop(entry.record.id, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.error("run %s failed", entry.record.id, exc_info=error)
        failure = InternalError(f"internal error; the log has it under run {entry.record.id}")
        tail = asyncio.create_task(self._end(entry.record, self._failure(entry.record, failure)))
        self._tails.add(tail)
        tail.add_done_callback(self._tails.discard)

    async def _drive(self, entry: _Entry) -> None:
        ending = await self._ending(entry)
        if ending is not None:
            await self._end(entry.record, ending)

    async def _ending(self, entry: _Entry) -> Ending | None:
        """None when the run was refused at once, and is not one."""
        record = entry.record
        try:
            work = entry.work or await self._worker.prepare(record)
            return await self._attempts(entry, work)
        except APIError as error:
            if entry.is_accepted:
                return self._failure(record, error)
            entry.refusal = error
            return None
        except asyncio.CancelledError:
            if entry.is_cancelling:
                return self._failure(record, cancelled(), "cancelled")
            if not entry.writer.has_begun:
                raise  # the process stops; it stays in the queue for the next one
            return self._failure(record, stopped())

    async def _attempts(self, entry: _Entry, work: Work) -> Ending:
        """Once, and again while lanes and limits do not let it begin."""
        ends_at = entry.record.created_at + self._section.keep_s
        while True:
            try:
                return await work(entry.writer)
            except _PASSING as error:
                if entry.writer.has_begun or not entry.is_accepted or time.time() > ends_at:
                    raise
                left_s = (entry.record.deadline_at or ends_at) - time.time()
                await asyncio.sleep(max(min(error.retry_after_s or _RETRY_S, _RETRY_S, left_s), 0.0))

    def _failure(self, record: Record, error: APIError, status: Status = "failed") -> Ending:
        return Ending(status, [self._worker.error_event(record, error)], error=error.to_wire()["error"])

    async def _end(self, record: Record, ending: Ending) -> None:
        """When the store cannot be written now, it is told to those who ask, and tried again."""
        try:
            await self.store.end(record.id, ending, time.time(), self._section.keep_s)
        except StoreUnavailable as error:
            logger.warning("the end of run %s is not stored yet: %s", record.id, error.message)
            self._unsaved[record.id] = ending
        self._tell(record.id)

    def _tell(self, run: str) -> None:
        news = self._news.pop(run, None)
        if news is not None:
            news.set()

    async def _look_after(self) -> None:
        while True:
            try:
                await self._sweep()
                await self._beat()
            except StoreUnavailable as error:
                logger.warning("%s", error.message)
            await asyncio.sleep(self._section.lease_s / 4)

    async def _sweep(self) -> None:
        """What could not be written before."""
        for run, ending in list(self._unsaved.items()):
            await self.store.end(run, ending, time.time(), self._section.keep_s)
            self._unsaved.pop(run, None)
        for run in list(self._unwanted):
            await self.store.delete(run)
            self._unwanted.discard(run)

    async def _beat(self) -> None:
        """Say that we live, see whom others cancelled, take up what others left, forget what is old."""
        now = time.time()
        for run in await self.store.beat(self._owner, now):
            if (entry := self._entries.get(run)) is not None:
                await self.cancel(entry.record)
        for record in await self.store.abandoned(now - self._section.lease_s):
            if await self.store.take(record, self._owner, time.time()):
                await self._take_up(record)
        await self.store.expire(now)

    async def _take_up(self, record: Record) -> None:
        """What had begun is failed, since its tokens may have been delivered; what waited is begun."""
        if record.is_cancelling:
            await self._end(record, self._failure(record, cancelled(), "cancelled"))
        elif record.status == "in_progress":
            await self._end(record, self._failure(record, stopped()))
        else:
            self._start(replace(record, owner=self._owner), None, is_accepted=True)
