"""The book of runs: leases between processes, and faults of our own."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from outrider.errors import APIError, Rejected, RunNotFound
from outrider.runs.book import RunBook
from outrider.runs.record import Ending, Record
from outrider.runs.store import RunStore
from outrider.runs.work import Work, Writer
from runs.databases import record, section, sqlite_url


class Resumed:
    """A worker whose resumed runs say one word."""

    async def prepare(self, _record: Record) -> Work:
        async def work(writer: Writer) -> Ending:
            await writer.begin()
            return Ending("completed", [b"resumed"])

        return work

    def error_event(self, _record: Record, error: APIError) -> bytes:
        return str(error.to_wire()["error"]["code"]).encode()


@asynccontextmanager
async def book(folder, **options):
    made = section(sqlite_url(folder), **options)
    found = RunBook(RunStore(made), made, Resumed())
    async with found.looked_after():
        yield found


def fresh(name="run_1", **fields):
    return record(name, created_at=time.time(), **fields)


async def whole(found, run):
    return [event async for events in found.follow(run, 0) for event in events]


async def test_who_is_silent_loses_the_run_and_can_add_nothing_to_it(tmp_path):
    """The other process fails it; what the first one writes then is refused, so that nobody reads two versions."""
    goes_on, refusals = asyncio.Event(), []

    async def work(writer):
        await writer.begin()
        await writer.write([b"a", b"b"])
        await goes_on.wait()
        try:
            await writer.write([b"late"])
        except Rejected as error:
            refusals.append(error.code)
            raise
        return Ending("completed")

    async with book(tmp_path, lease_s=1000) as first, book(tmp_path, lease_s=0.2) as second:
        await first.create(fresh(), work)
        events = await asyncio.wait_for(whole(second, "run_1"), 5)
        assert events == [(1, b"a"), (2, b"b"), (3, b"gateway_stopped")]
        goes_on.set()
        while not refusals:
            await asyncio.sleep(0.01)
        assert refusals == ["run_cancelled"]
        assert await whole(first, "run_1") == events


async def test_a_run_that_waits_is_resumed_by_one_of_many(tmp_path):
    """However many look at the same moment."""
    store = RunStore(section(sqlite_url(tmp_path)))
    await store.open()
    for i in range(5):
        await store.add(fresh(f"run_{i}", owner=None))
    await store.close()
    async with book(tmp_path) as one, book(tmp_path) as two, book(tmp_path) as three:
        for i in range(5):
            for found in (one, two, three):
                events = await asyncio.wait_for(whole(found, f"run_{i}"), 5)
                assert events == [(1, b"resumed")]


async def test_a_fault_of_ours_ends_the_run_typed(tmp_path, caplog):
    """And is in the log; the run is not left open."""

    async def work(writer):
        await writer.begin()
        raise ZeroDivisionError

    async with book(tmp_path) as found:
        await found.create(fresh(), work)
        assert await asyncio.wait_for(whole(found, "run_1"), 5) == [(1, b"internal_error")]
        assert (await found.get("run_1", "t")).status == "failed"
        with pytest.raises(RunNotFound):
            await found.get("run_1", "other")
    assert "ZeroDivisionError" in caplog.text
