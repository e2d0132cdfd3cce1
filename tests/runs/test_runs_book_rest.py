"""Runs that are lost, that meet a stop, and clocks that jump."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace

import pytest

from outrider.errors import (
    LaneUnavailable,
    RunNotFound,
)
from outrider.runs.book import RunBook
from outrider.runs.record import Ending
from outrider.runs.store import RunStore
from outrider.runs.work import RunLost
from runs.databases import locked, section, sqlite_url, unlock
from runs.test_runs_book import Resumed, book, fresh, whole


async def lose(found, run):
    """To another process; tried again when the owner's beat comes between. The record as it was."""
    async with asyncio.timeout(60):
        while True:
            ours = await found.store.get(run)
            if await found.store.take(ours, "another", 1.0):
                return ours


async def until_none_is_open(found):
    async with asyncio.timeout(60):
        while "0 open" not in repr(found):
            await asyncio.sleep(0.01)


async def test_a_run_that_is_lost_is_not_told_as_ended(tmp_path):
    """Though the store cannot be written at that moment: what it is now is the new owner's to say."""

    async def work(writer):
        await goes_on.wait()
        await writer.begin()

    goes_on = asyncio.Event()
    async with book(tmp_path, lease_s=1000) as found:
        await found.create(fresh(), work)
        ours = await lose(found, "run_1")
        goes_on.set()
        await until_none_is_open(found)
        assert "0 unsaved" in repr(found)
        await found.store.take(replace(ours, owner="another", beat_at=1.0), ours.owner, 2.0)
        found.unsaved["run_1"] = Ending("cancelled", [b"ours"])
        assert (await found.get("run_1", "t")).status == "cancelled"
        await found.store.take(replace(ours, beat_at=2.0), "another", 3.0)
        assert (await found.get("run_1", "t")).status == "queued"


async def test_a_run_that_is_lost_ends_with_nothing_to_store(tmp_path):
    """The work sees a type of its own; no second end is asked for."""
    ends, seen = [], []

    class Noting(RunStore):
        async def end(self, run, *rest):
            ends.append(run)
            return await super().end(run, *rest)

    async def work(writer):
        await goes_on.wait()
        try:
            await writer.begin()
        except RunLost as error:
            seen.append(error.code)
            raise

    goes_on, made = asyncio.Event(), section(sqlite_url(tmp_path), lease_s=1000)
    found = RunBook(Noting(made), made, Resumed())
    async with found.looked_after():
        await found.create(fresh(), work)
        await lose(found, "run_1")
        goes_on.set()
        await until_none_is_open(found)
        assert (seen, ends) == (["run_lost"], [])


async def test_a_client_that_left_before_a_stop_leaves_no_run_to_the_next_process(tmp_path):
    """What nobody was told of is removed before what waits is left to others."""
    async with book(tmp_path, lease_s=1000) as found:
        await asyncio.sleep(0.1)  # the first look is over
        creating = asyncio.create_task(found.create(fresh(), None))
        await asyncio.sleep(0)
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
    async with book(tmp_path, lease_s=1000) as found:
        with pytest.raises(RunNotFound):
            await found.get("run_1", "t")


async def test_a_run_that_is_stored_while_the_process_comes_to_rest_waits_for_the_next(tmp_path):
    """It is accepted, and not begun here."""
    tries = []

    async def work(_writer):
        tries.append(1)
        raise LaneUnavailable("no lane")

    async with book(tmp_path, lease_s=1000) as found:
        await asyncio.sleep(0.1)
        other = await locked(tmp_path)
        creating = asyncio.create_task(found.create(fresh(), work))
        async with asyncio.timeout(60):
            while not found.num_open:
                await asyncio.sleep(0.01)
        found.rest()
        unlock(other)
        assert (await creating).status == "queued"
        assert (tries, "0 open" in repr(found)) == ([], True)
    async with book(tmp_path) as found:
        assert await asyncio.wait_for(whole(found, "run_1"), 60) == [(1, b"resumed")]


async def test_a_run_that_is_taken_up_while_the_process_comes_to_rest_waits_for_the_next(tmp_path):
    """The look at what others left was under way; nothing is begun of it."""

    class Resting(RunStore):
        async def take(self, *given):
            found.rest()
            return await super().take(*given)

    made = section(sqlite_url(tmp_path))
    found = RunBook(Resting(made), made, Resumed())
    await found.store.open()
    await found.store.add(fresh(owner=None))
    async with found.looked_after():
        await asyncio.sleep(0.3)
        assert (await found.get("run_1", "t")).status == "queued"
    async with book(tmp_path) as next_one:
        assert await asyncio.wait_for(whole(next_one, "run_1"), 60) == [(1, b"resumed")]


async def test_a_clock_that_jumps_takes_no_run_from_a_living_process(tmp_path, monkeypatch):
    """Hours forward and back, at every look: two processes keep their own runs, and each runs once."""
    real, jumps, begun = time.time, itertools.cycle([3600.0, -3600.0, 86400.0, 0.0]), []
    far = {"lease_s": 4.0, "keep_s": 10.0**7}
    goes_on = asyncio.Event()

    def work(name):
        async def work(writer):
            await writer.begin()
            begun.append(name)
            await goes_on.wait()
            return Ending("completed", [b"done"])

        return work

    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    async with book(tmp_path, **far) as one, book(tmp_path, **far) as two:
        for i, found in enumerate((one, two, one, two)):
            await found.create(fresh(f"run_{i}", deadline_at=real() + 10**6), work(f"run_{i}"))
        await asyncio.sleep(2.4)
        goes_on.set()
        for i in range(4):
            assert await asyncio.wait_for(whole(two, f"run_{i}"), 60) == [(1, b"done")]
    assert sorted(begun) == [f"run_{i}" for i in range(4)]


async def test_a_clock_that_jumps_does_not_end_a_run_that_waits(tmp_path, monkeypatch):
    """Its deadline is seconds from its arrival."""
    real, is_ready = time.time, asyncio.Event()

    async def work(writer):
        await asyncio.sleep(0.01)
        if not is_ready.is_set():
            is_ready.set()
            monkeypatch.setattr(time, "time", lambda: real() + 3600)
            raise LaneUnavailable("no lane")
        await writer.begin()
        return Ending("completed", [b"done"])

    async with book(tmp_path) as found:
        await found.create(fresh(deadline_at=real() + 60), work)
        assert await asyncio.wait_for(whole(found, "run_1"), 60) == [(1, b"done")]
