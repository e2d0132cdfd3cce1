"""The runs of one process: begins, resumes, cancels and ends them. Everything that others may see is in the store."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import TYPE_CHECKING, Literal

from outrider.config import RunsSection
from outrider.errors import (
    APIError,
    GatewayStopped,
    InternalError,
    LaneUnavailable,
    QueueFull,
    QueueTimeout,
    RateLimited,
    StoreUnavailable,
)
from outrider.runs.leases import Leases
from outrider.runs.reader import RunReader
from outrider.runs.record import Ending, Record, Status
from outrider.runs.work import RunLost, Work, Worker, Writer, cancelled, stopped

if TYPE_CHECKING:
    from outrider.runs.store import RunStore

logger = logging.getLogger(__name__)

#: Between two attempts of a run that waits; doubled with every one.
_RETRY_S, _MAX_RETRY_S = 0.5, 5.0
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


class RunBook(RunReader):
    """Use `looked_after` around the life of the process."""

    def __init__(self, store: RunStore, section: RunsSection, worker: Worker) -> None:
        super().__init__(store, f"{socket.gethostname()[:40]}:{os.getpid()}:{token_hex(4)}")
        self._section = section
        self._worker = worker
        self._leases = Leases(section.lease_s)
        self._entries: dict[str, _Entry] = {}
        self._unwanted: set[str] = set()
        self._tails: set[asyncio.Task[None]] = set()
        self._num_adding = 0
        self._is_resting = False
        self._is_store_well = True
        self._regular: asyncio.Task[None] | None = None
        self.look_now = asyncio.Event()

    def __repr__(self) -> str:
        return f"<RunBook {self.owner} {len(self._entries)} open, {len(self.unsaved)} unsaved>"

    @asynccontextmanager
    async def looked_after(self) -> AsyncIterator[None]:
        """Take up what was left, and at the end fail what has begun and leave the rest to the next process."""
        await self.store.open()
        self._regular = asyncio.create_task(self._look_after())
        self._regular.add_done_callback(_log_fault)
        try:
            yield
        finally:
            tasks = [self._regular, *(entry.task for entry in self._entries.values() if entry.task is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, *self._tails, return_exceptions=True)
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(2 * self._section.timeout_s):
                    await self._sweep()
                    await self.store.release(self.owner)
            await self.store.close()

    @property
    def state(self) -> Literal["ok", "store unavailable", "not looked after"]:
        """How it stood at the last look after the runs."""
        if self._regular is None or self._regular.done():
            return "not looked after"
        return "ok" if self._is_store_well else "store unavailable"

    @property
    def num_open(self) -> int:
        """Runs of this process that have not ended, with those that are being stored."""
        return len(self._entries) + self._num_adding

    def rest(self) -> None:
        """Begin nothing more, since the process is to stop: what waits is left to the next one."""
        self._is_resting = True
        for entry in self._entries.values():
            if not entry.writer.has_begun and entry.task is not None:
                entry.task.cancel()

    async def create(self, record: Record, work: Work) -> Record:
        """Keep the run, then begin it. What a request would be refused for at once is raised, and nothing is kept.

        QueueFull at the limit of open runs; StoreUnavailable; GatewayStopped.
        """
        record = replace(record, owner=self.owner, beat_at=time.time())
        await self._add(record)
        if self._is_resting:
            return record  # it was stored meanwhile, and waits for the next process
        entry = self._start(record, work, is_accepted=False)
        try:
            await asyncio.sleep(0)  # its first step goes to where it first waits: in the queue, or for the store
        finally:
            entry.is_accepted = True  # from here on it is there, whether its client is or not
            if entry.refusal is not None:
                self._unwanted.add(record.id)
        if entry.refusal is not None:
            with suppress(StoreUnavailable):  # then the next look removes it
                await self._sweep()
            raise entry.refusal
        return record

    async def _add(self, record: Record) -> None:
        if self._is_resting:
            raise GatewayStopped("the gateway stops")
        if self.state == "not looked after":
            raise StoreUnavailable("the runs are not looked after", retry_after_s=None)
        if self.num_open >= self._section.max_open:
            raise QueueFull(f"{self.num_open} runs are open already", retry_after_s=1.0)
        self._num_adding += 1
        try:
            await self.store.add(record)
        except (StoreUnavailable, asyncio.CancelledError):
            self._unwanted.add(record.id)  # it may still be written, and nobody has been told of it
            raise
        finally:
            self._num_adding -= 1

    async def keep(self, record: Record) -> None:
        """A run that has ended already. StoreUnavailable."""
        now = time.time()
        await self.store.add(replace(record, ended_at=now, expires_at=now + self._section.keep_s))

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
        self.unsaved.pop(record.id, None)
        self.tell(record.id)

    def _start(self, record: Record, work: Work | None, *, is_accepted: bool) -> _Entry:
        entry = _Entry(record, Writer(self.store, record.id, self.owner, self.tell), work, is_accepted)
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
        """None when the run was refused at once, and is not one, or is not ours to end any more."""
        record = entry.record
        try:
            return await self._attempts(entry)
        except RunLost as error:
            logger.warning("run %s: %s", record.id, error.message)
            return None
        except APIError as error:
            if entry.is_accepted:
                return self._failure(record, error)
            entry.refusal = error
            return None
        except asyncio.CancelledError:
            if entry.is_cancelling:
                return self._failure(record, cancelled(), "cancelled")
            if not entry.writer.has_begun:
                raise  # the process stops; the run stays in the queue for the next one
            return self._failure(record, stopped())

    async def _attempts(self, entry: _Entry) -> Ending:
        """Once, and again while lanes and limits do not let it begin."""
        ends_at = entry.record.deadline_at or entry.record.created_at + self._section.keep_s
        ends_s = time.monotonic() + ends_at - time.time()
        pause_s = _RETRY_S
        while True:
            try:
                work = entry.work or await self._worker.prepare(entry.record)
                return await work(entry.writer)
            except _PASSING as error:
                left_s = ends_s - time.monotonic()
                if entry.writer.has_begun or not entry.is_accepted or left_s <= 0:
                    raise
                await asyncio.sleep(min(max(error.retry_after_s or 0.0, pause_s), _MAX_RETRY_S, left_s))
                pause_s = min(2 * pause_s, _MAX_RETRY_S)

    def _failure(self, record: Record, error: APIError, status: Status = "failed") -> Ending:
        return Ending(status, [self._worker.error_event(record, error)], error=error.to_wire()["error"])

    async def _end(self, record: Record, ending: Ending) -> None:
        """When the store cannot be written now, it is told to those who ask, and tried again."""
        try:
            await self.store.end(record.id, self.owner, ending, time.time(), self._section.keep_s)
        except StoreUnavailable as error:
            logger.warning("the end of run %s is not stored yet: %s", record.id, error.message)
            self.unsaved[record.id] = ending
        self.tell(record.id)

    async def _look_after(self) -> None:
        while True:
            try:
                await self._sweep()
                await self._beat()
                self._is_store_well = True
            except StoreUnavailable as error:
                self._is_store_well = False
                logger.warning("%s", error.message)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._section.lease_s / 4):
                    await self.look_now.wait()
            self.look_now.clear()

    async def _sweep(self) -> None:
        """What could not be written before."""
        for run, ending in list(self.unsaved.items()):
            await self.store.end(run, self.owner, ending, time.time(), self._section.keep_s)
            self.unsaved.pop(run, None)
        for run in list(self._unwanted):
            await self.store.delete(run)
            self._unwanted.discard(run)

    async def _beat(self) -> None:
        """Say that we live, see whom others cancelled, take up what others left, forget what is old."""
        now = time.time()
        for run in await self.store.beat(self.owner, now):
            if (entry := self._entries.get(run)) is not None:
                await self.cancel(entry.record)
        silent = self._leases.silent(await self.store.beats(self.owner), time.monotonic())
        for record in await self.store.abandoned(silent):
            if self._is_resting:
                break
            if record.status == "queued" and self.num_open >= self._section.max_open:
                continue
            if await self.store.take(record, self.owner, time.time()):
                await self._take_up(record)
        await self.store.expire(now)

    async def _take_up(self, record: Record) -> None:
        """What had begun is failed, since its tokens may have been delivered; what waited is begun."""
        if record.is_cancelling:
            await self._end(record, self._failure(record, cancelled(), "cancelled"))
        elif record.status == "in_progress":
            await self._end(record, self._failure(record, stopped()))
        elif not self._is_resting:
            self._start(replace(record, owner=self.owner), None, is_accepted=True)


def _log_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("runs are not looked after any more, and no more are accepted", exc_info=error)
