"""The tables of runs and their events, behind SQLAlchemy; the only module that knows SQL of theirs.

Every operation is one transaction that goes on when its caller is cancelled; past the timeout StoreUnavailable.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from outrider.config import RunsSection
from outrider.errors import ConfigError, StoreUnavailable
from outrider.runs.record import OPEN, Ending, Record

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: A store that hangs must not collect what it is told meanwhile.
MAX_WAITING = 1024

_SCHEMA = sa.MetaData()
_RUNS = sa.Table(
    "outrider_runs", _SCHEMA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("path", sa.String(64), nullable=False),
    sa.Column("tenant", sa.String(256), nullable=False),
    sa.Column("key", sa.String(64)),
    sa.Column("request_id", sa.String(128), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("headers", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("deadline_at", sa.Double),
    sa.Column("status", sa.String(16), nullable=False, index=True),
    sa.Column("owner", sa.String(64), index=True),
    sa.Column("beat_at", sa.Double, nullable=False),
    sa.Column("started_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    sa.Column("expires_at", sa.Double, index=True),
    sa.Column("is_cancelling", sa.Boolean, nullable=False),
    sa.Column("num_events", sa.Integer, nullable=False),
    sa.Column("answer", sa.LargeBinary),
    sa.Column("error", sa.JSON(none_as_null=True)),
)  # fmt: skip
_EVENTS = sa.Table(
    "outrider_run_events", _SCHEMA,
    sa.Column("run", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)  # fmt: skip
_COLUMNS = [_RUNS.c[one.name] for one in fields(Record)]
_LISTED = [one for one in _COLUMNS if one.name not in ("body", "headers", "answer")]
_IS_OPEN = _RUNS.c.status.in_(OPEN)


class RunStore:
    """One database. Writes go one at a time, in the order of asking; a file is readable by its owner only."""

    def __init__(self, section: RunsSection) -> None:
        """ConfigError when the URL names no database that can be used asynchronously."""
        self._timeout_s = section.timeout_s
        try:
            url = sa.make_url(section.url or "")
            is_sqlite = url.get_backend_name() == "sqlite"
            options: dict[str, Any] = {"pool_timeout": section.timeout_s, "hide_parameters": True}
            if is_sqlite:
                options["connect_args"] = {"timeout": section.timeout_s}
            self._engine: AsyncEngine = create_async_engine(url, **options)
        except (ArgumentError, SQLAlchemyError, ImportError, TypeError) as error:
            raise ConfigError(f"runs.url: {error}") from error
        self.where = url.render_as_string(hide_password=True)
        # Else what a cancelled caller has left behind may be written after what came later.
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        if is_sqlite:
            _make_private(url.database)
            sa.event.listen(self._engine.sync_engine, "connect", _set_up_sqlite)

    async def open(self) -> None:
        """Make the tables where they are missing."""
        await self._write(lambda connection: connection.run_sync(_SCHEMA.create_all))

    async def close(self) -> None:
        """Wait for what is being written, then close the connections; not for ever, when the store hangs."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * self._timeout_s)
        stuck = list(self._tasks)
        for task in stuck:
            task.cancel()
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.gather(*stuck, return_exceptions=True)
                await self._engine.dispose()
        except TimeoutError:
            logger.error("the store of runs does not answer; %d operations are given up", len(stuck))

    async def add(self, record: Record) -> None:
        """A new run."""
        await self._write(lambda connection: connection.execute(_RUNS.insert().values(**asdict(record))))

    async def get(self, run: str) -> Record | None:
        """The run of that id; None when there is none."""
        rows = await self._read(sa.select(*_COLUMNS).where(_RUNS.c.id == run))
        return _record(rows[0]) if rows else None

    async def newest(self, tenant: str | None, limit: int, after: Record | None, now: float) -> list[Record]:
        """Of the tenant, of all for None: what has not expired, the newest first, behind `after`.

        Bodies, headers and answers stay where they are.
        """
        query = sa.select(*_LISTED).where(sa.or_(_RUNS.c.expires_at.is_(None), _RUNS.c.expires_at >= now))
        if tenant is not None:
            query = query.where(_RUNS.c.tenant == tenant)
        if after is not None:
            query = query.where(sa.tuple_(_RUNS.c.created_at, _RUNS.c.id) < (after.created_at, after.id))
        query = query.order_by(_RUNS.c.created_at.desc(), _RUNS.c.id.desc()).limit(limit)
        return [Record(**row._mapping, body=b"", headers={}) for row in await self._read(query)]

    async def events(self, run: str, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Numbers and bytes of the events behind number `after`, in order."""
        query = sa.select(_EVENTS.c.number, _EVENTS.c.data).where(_EVENTS.c.run == run, _EVENTS.c.number > after)
        return [(row[0], row[1]) for row in await self._read(query.order_by(_EVENTS.c.number).limit(limit))]

    async def begin(self, run: str, owner: str, now: float) -> bool:
        """From queued to in progress. False when it is not queued and ours any more."""
        change = _RUNS.update().where(_RUNS.c.id == run, _RUNS.c.owner == owner, _RUNS.c.status == "queued")
        return await self._change(change.values(status="in_progress", started_at=now, beat_at=now))

    async def append(self, run: str, owner: str, events: Sequence[bytes], now: float) -> bool:
        """Number and keep the events. False, keeping none, when the run is not in progress and ours any more."""
        change = _RUNS.update().where(_RUNS.c.id == run, _RUNS.c.owner == owner, _RUNS.c.status == "in_progress")
        return await self._write(lambda connection: _advance(connection, run, change.values(beat_at=now), events))

    async def end(self, run: str, owner: str, ending: Ending, now: float, keep_s: float) -> bool:
        """The end and the last events together. False when the run has ended already or is not ours any more."""
        change = _RUNS.update().where(_RUNS.c.id == run, _RUNS.c.owner == owner, _IS_OPEN).values(
            status=ending.status, answer=ending.answer, error=ending.error, owner=None, ended_at=now,
            expires_at=now + keep_s,
        )  # fmt: skip
        return await self._write(lambda connection: _advance(connection, run, change, ending.events))

    async def ask_cancel(self, run: str) -> None:
        """Its owner sees it with its next beat."""
        await self._change(_RUNS.update().where(_RUNS.c.id == run, _IS_OPEN).values(is_cancelling=True))

    async def beat(self, owner: str, now: float) -> list[str]:
        """Say that the owner of these runs is alive; gives those of them that are to be cancelled."""
        await self._change(_RUNS.update().where(_RUNS.c.owner == owner, _IS_OPEN).values(beat_at=now))
        query = sa.select(_RUNS.c.id).where(_RUNS.c.owner == owner, _IS_OPEN, _RUNS.c.is_cancelling)
        return [row[0] for row in await self._read(query)]

    async def beats(self, but: str) -> dict[str, float]:
        """When each owner of open runs last said that it is alive, by its own clock; `but` is left out."""
        query = sa.select(_RUNS.c.owner, sa.func.max(_RUNS.c.beat_at)).where(_IS_OPEN, _RUNS.c.owner != but)
        return {row[0]: row[1] for row in await self._read(query.group_by(_RUNS.c.owner))}

    async def abandoned(self, silent: Sequence[str]) -> list[Record]:
        """Open runs that nobody owns, or one of these; the oldest first."""
        query = sa.select(*_COLUMNS).where(_IS_OPEN, sa.or_(_RUNS.c.owner.is_(None), _RUNS.c.owner.in_(silent)))
        return [_record(row) for row in await self._read(query.order_by(_RUNS.c.created_at))]

    async def take(self, record: Record, owner: str, now: float) -> bool:
        """Become the owner of an abandoned run. False when somebody else was first."""
        same = _RUNS.c.owner.is_(None) if record.owner is None else _RUNS.c.owner == record.owner
        change = _RUNS.update().where(_RUNS.c.id == record.id, _IS_OPEN, same, _RUNS.c.beat_at == record.beat_at)
        return await self._change(change.values(owner=owner, beat_at=now))

    async def release(self, owner: str) -> None:
        """Leave queued runs to whoever comes next."""
        change = _RUNS.update().where(_RUNS.c.owner == owner, _RUNS.c.status == "queued")
        await self._change(change.values(owner=None))

    async def delete(self, run: str) -> None:
        """The run and its events."""
        await self._delete(_RUNS.c.id == run, _EVENTS.c.run == run)

    async def expire(self, now: float) -> None:
        """Forget what has been kept for long enough."""
        is_old = sa.and_(_RUNS.c.expires_at.is_not(None), _RUNS.c.expires_at < now)
        await self._delete(is_old, _EVENTS.c.run.in_(sa.select(_RUNS.c.id).where(is_old)))

    async def _delete(self, runs: sa.ColumnElement[bool], events: sa.ColumnElement[bool]) -> None:
        async def work(connection: AsyncConnection) -> None:
            await connection.execute(_EVENTS.delete().where(events))
            await connection.execute(_RUNS.delete().where(runs))

        await self._write(work)

    async def _change(self, change: sa.Update) -> bool:
        """Whether a row was changed."""
        result = await self._write(lambda connection: connection.execute(change))
        return result.rowcount > 0

    async def _read(self, query: sa.Select[Any]) -> Sequence[Any]:
        async def work() -> Sequence[Any]:
            async with self._engine.connect() as connection:
                return list((await connection.execute(query)).all())

        return await self._whole(work())

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        async def transaction() -> _T:
            async with self._writing, self._engine.begin() as connection:
                return await work(connection)

        return await self._whole(transaction())

    async def _whole(self, work: Coroutine[Any, Any, _T]) -> _T:
        """In a task of its own: a caller that is cancelled leaves no half transaction and no open connection."""
        if len(self._tasks) >= MAX_WAITING:
            work.close()
            raise StoreUnavailable(f"{MAX_WAITING} operations wait for the store of runs", retry_after_s=1.0)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(2 * self._timeout_s):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise StoreUnavailable("the store of runs does not answer", retry_after_s=1.0) from error
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            cause = getattr(error, "orig", None) or error
            raise StoreUnavailable(f"the store of runs cannot be used: {cause}", retry_after_s=1.0) from error

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # of a caller that has gone; it is nobody's news


def _record(row: Any) -> Record:
    return Record(**row._mapping)


async def _advance(connection: AsyncConnection, run: str, change: sa.Update, events: Sequence[bytes]) -> bool:
    """Make the change and add the events behind those that are there. False when the change meets no run."""
    counted = change.values(num_events=_RUNS.c.num_events + len(events)).returning(_RUNS.c.num_events)
    last = (await connection.execute(counted)).scalar_one_or_none()
    if last is None:
        return False
    first = last - len(events) + 1
    rows = [{"run": run, "number": first + i, "data": data} for i, data in enumerate(events)]
    if rows:
        await connection.execute(_EVENTS.insert(), rows)
    return True


def _make_private(database: str | None) -> None:
    """Prompts stand in the file. ConfigError when it cannot be made."""
    if database in (None, "", ":memory:"):
        raise ConfigError("runs.url: a database in memory would be lost with the process")
    try:
        os.close(os.open(str(database), os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise ConfigError(f"runs.url: {database} cannot be written: {error.strerror}") from error


def _set_up_sqlite(connection: Any, _record: object) -> None:
    """A commit is on the disk before anybody is told of it: `synchronous` is FULL."""
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
