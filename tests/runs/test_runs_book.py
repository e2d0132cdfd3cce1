"""The book of runs: leases between processes, and faults of our own."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise

import pytest

from outrider.errors import (
    APIError,
    GatewayStopped,
    LaneUnavailable,
    QueueFull,
    Rejected,
    RunNotFound,
    StoreUnavailable,
)
from outrider.runs.book import RunBook
from outrider.runs.record import Ending, Record
from outrider.runs.store import RunStore
from outrider.runs.work import RunLost, Work, Writer
from runs.databases import locked, record, section, sqlite_url, unlock


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


async def until_begun(found, run):
    async with asyncio.timeout(60):
        while (await found.get(run, "t")).status == "queued":
            await asyncio.sleep(0.01)


async def test_who_is_silent_loses_the_run_and_can_add_nothing_to_it(tmp_path):
    """The other process fails it; what the first one writes then is refused, so that nobody reads two versions."""
    has_written, goes_on, was_refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(writer):
        await writer.begin()
        await writer.write([b"a", b"b"])
        has_written.set()
        await goes_on.wait()
        try:
            await writer.write([b"late"])
        except RunLost:
            was_refused.set()
            raise
        return Ending("completed")

    async with book(tmp_path, lease_s=1000) as first:
        await first.create(fresh(), work)
        await asyncio.wait_for(has_written.wait(), 60)
        async with book(tmp_path, lease_s=0.2) as second:
            events = await asyncio.wait_for(whole(second, "run_1"), 60)
            assert events == [(1, b"a"), (2, b"b"), (3, b"gateway_stopped")]
            goes_on.set()
            await asyncio.wait_for(was_refused.wait(), 60)
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
                events = await asyncio.wait_for(whole(found, f"run_{i}"), 60)
                assert events == [(1, b"resumed")]


async def test_a_fault_of_ours_ends_the_run_typed(tmp_path, caplog):
    """And is in the log; the run is not left open."""

    async def work(writer):
        await writer.begin()
        raise ZeroDivisionError

    async with book(tmp_path) as found:
        await found.create(fresh(), work)
        assert await asyncio.wait_for(whole(found, "run_1"), 60) == [(1, b"internal_error")]
        assert (await found.get("run_1", "t")).status == "failed"
        with pytest.raises(RunNotFound):
            await found.get("run_1", "other")
    assert "ZeroDivisionError" in caplog.text


async def test_a_run_past_its_deadline_is_failed_and_does_not_spin(tmp_path):
    """It waits with longer and longer pauses, tries once more at its deadline, and ends with what refused it."""
    tries = []

    async def work(_writer):
        tries.append(time.time())
        if len(tries) == 1:
            await asyncio.sleep(0.01)  # accepted meanwhile
        raise LaneUnavailable("no lane", retry_after_s=None)

    async with book(tmp_path) as found:
        await found.create(fresh(deadline_at=time.time() + 2.0), work)
        assert await asyncio.wait_for(whole(found, "run_1"), 60) == [(1, b"lane_unavailable")]
    assert 2 <= len(tries) <= 4


async def test_a_queued_run_that_was_taken_over_is_not_ended_by_its_old_owner(tmp_path):
    """Its own refusal is nobody's news any more."""
    goes_on, has_tried = asyncio.Event(), asyncio.Event()

    async def work(_writer):
        await goes_on.wait()
        has_tried.set()
        raise Rejected("no", status=400, code="no")

    class Patient(Resumed):
        async def prepare(self, _record):
            async def work(writer):
                await writer.begin()
                await has_tried.wait()
                while "0 open" not in repr(first):
                    await asyncio.sleep(0.01)
                return Ending("completed", [b"resumed"])

            return work

    made = section(sqlite_url(tmp_path), lease_s=0.2)
    second = RunBook(RunStore(made), made, Patient())
    async with book(tmp_path, lease_s=1000) as first, second.looked_after():
        await first.create(fresh(), work)
        await until_begun(second, "run_1")
        goes_on.set()
        assert await asyncio.wait_for(whole(second, "run_1"), 60) == [(1, b"resumed")]
        assert (await first.get("run_1", "t")).status == "completed"


async def test_a_client_that_leaves_while_its_run_is_stored_leaves_no_run(tmp_path):
    """Nobody was told of it; the next look removes it."""
    async with book(tmp_path, lease_s=0.1) as found:
        creating = asyncio.create_task(found.create(fresh(), None))
        await asyncio.sleep(0)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        async with asyncio.timeout(60):
            while True:
                await asyncio.sleep(0.05)
                if await found.store.get("run_1") is None:
                    break
        assert "0 open" in repr(found)


async def test_the_limit_of_open_runs_holds_for_those_who_come_together(tmp_path):
    """Those that are being stored count too."""

    async def work(_writer):
        await asyncio.sleep(60)

    async with book(tmp_path, max_open=3) as found:
        creating = (found.create(fresh(f"run_{i}"), work) for i in range(9))
        made = await asyncio.gather(*creating, return_exceptions=True)
        assert [type(one) for one in made if isinstance(one, Exception)] == [QueueFull] * 6


async def test_a_resting_book_leaves_what_waits_and_ends_what_has_begun(tmp_path):
    """Nothing is begun once the process is to stop, and nothing taken up; the next process does it."""
    may_begin, goes_on = asyncio.Event(), asyncio.Event()

    async def waits(writer):
        await may_begin.wait()
        await writer.begin()
        return Ending("completed", [b"too late"])

    async def runs(writer):
        await writer.begin()
        await goes_on.wait()
        return Ending("completed", [b"done"])

    async with book(tmp_path, lease_s=0.1) as found:
        await found.create(fresh("run_1"), waits)
        await found.create(fresh("run_2"), runs)
        await until_begun(found, "run_2")
        found.rest()
        may_begin.set()
        with pytest.raises(GatewayStopped):
            await found.create(fresh("run_3"), runs)
        await asyncio.sleep(0.3)
        assert (await found.get("run_1", "t")).status == "queued"
        goes_on.set()
        assert await asyncio.wait_for(whole(found, "run_2"), 60) == [(1, b"done")]
    async with book(tmp_path) as next_one:
        assert await asyncio.wait_for(whole(next_one, "run_1"), 60) == [(1, b"resumed")]


async def test_no_run_is_accepted_that_nobody_looks_after(tmp_path, caplog):
    """When looking after runs has failed by a fault of ours, it is in the log and creating one is refused."""

    class Broken(RunStore):
        async def beat(self, owner, now):
            raise ZeroDivisionError

    made = section(sqlite_url(tmp_path))
    found = RunBook(Broken(made), made, Resumed())
    async with found.looked_after():
        async with asyncio.timeout(60):
            while not caplog.records:
                await asyncio.sleep(0.01)
        with pytest.raises(StoreUnavailable):
            await found.create(fresh(), None)
    assert "not looked after" in caplog.text


async def test_what_others_left_is_taken_up_as_far_as_there_is_room(tmp_path):
    """The limit of open runs holds for it too; the rest is taken when runs have ended."""
    store = RunStore(section(sqlite_url(tmp_path)))
    await store.open()
    for i in range(5):
        await store.add(fresh(f"run_{i}", owner=None))
    await store.close()
    most = []

    class Counting(Resumed):
        async def prepare(self, record):
            most.append(int(re.search(r"(\d+) open", repr(found))[1]))
            return await super().prepare(record)

    made = section(sqlite_url(tmp_path), lease_s=0.2, max_open=2)
    found = RunBook(RunStore(made), made, Counting())
    async with found.looked_after():
        for i in range(5):
            assert await asyncio.wait_for(whole(found, f"run_{i}"), 60) == [(1, b"resumed")]
    assert len(most) == 5 and max(most) <= 2


async def test_a_quiet_run_is_looked_at_less_and_less(tmp_path):
    """Twice as long between two looks, every time that nothing has come."""

    async def work(writer):
        await writer.begin()
        await asyncio.sleep(60)

    async with book(tmp_path) as found:
        found.poll_s = 0.05, 0.2
        await found.create(fresh(), work)
        await until_begun(found, "run_1")
        looks_s = []
        async with aclosing(found.follow("run_1", 0)) as batches:
            async for _ in batches:
                looks_s.append(time.monotonic())
                if len(looks_s) == 5:
                    break
        pauses_s = [later - before for before, later in pairwise(looks_s)]
        assert all(pause_s > least for pause_s, least in zip(pauses_s, (0.04, 0.09, 0.19, 0.19), strict=True))


async def test_how_the_store_does_is_told(tmp_path):
    """While it cannot be used, and when looking after the runs has ended."""
    async with book(tmp_path, lease_s=0.1, timeout_s=1.0) as found:
        await asyncio.sleep(0.1)
        assert found.state == "ok"
        other = await locked(tmp_path)
        async with asyncio.timeout(60):
            while found.state != "store unavailable":
                await asyncio.sleep(0.01)
            unlock(other)
            while found.state != "ok":
                await asyncio.sleep(0.01)
    assert found.state == "not looked after"
