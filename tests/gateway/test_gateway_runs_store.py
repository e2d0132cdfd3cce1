"""Runs in the background when their store is locked, full or gone, and when a lane or a key is."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from hashlib import sha256

import pytest

from gateway.runs_world import (
    BACKGROUND,
    EVENTS,
    RUNS,
    TEXT,
    error_of,
    hang_after,
    paced,
    read_events,
    section,
    show,
    start,
    text_of,
)
from gateway.world import eventually, world
from outrider.config import AdmissionSection, AuthSection, KeySection
from outrider.errors import ConfigError
from outrider.runtimes.scripted_replies import Reply, chat_reply
from runs.databases import full_disk, locked, unlock


async def test_a_locked_store_refuses_a_run_in_time(tmp_path):
    """503 with a typed code; requests without a store go on; nothing of the refused run is left."""
    async with world(runs=section(tmp_path, timeout_s=1.0)) as w:
        db = await locked(tmp_path)
        async with asyncio.timeout(60):
            async with w.chat(**BACKGROUND) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (503, "store_unavailable")
            async with w.chat() as response:
                assert response.status == 200
        db.execute("ROLLBACK")
        last = await start(w)
        await eventually(lambda: db.execute("SELECT id FROM outrider_runs").fetchall() == [(last,)])
        db.close()


async def test_a_full_disk_fails_the_run_and_is_told_at_once(tmp_path):
    """The lane is told, the run shows why, and its end is stored when there is room again."""
    steps, goes_on = chat_reply(["x" * 9000] * 40, stream=True).steps, asyncio.Event()
    big = Reply(200, EVENTS, (*steps[:4], goes_on, *steps[4:]))
    async with world(lambda _request: big, runs=section(tmp_path)) as w:
        run = await start(w)
        await read_events(w, run, most=3)
        with full_disk():
            goes_on.set()
            await eventually(lambda: w.outcomes)
            async with asyncio.timeout(60):
                while (shown := await show(w, run))["status"] == "in_progress":
                    await asyncio.sleep(0.01)
            assert (shown["status"], shown["error"]["code"]) == ("failed", "store_unavailable")
            events = await read_events(w, run)
            assert error_of(events)["code"] == "store_unavailable"
        await eventually(lambda: len(w.scripted.aborted) == 1)
        with sqlite3.connect(tmp_path / "runs.sqlite") as db:
            query = "SELECT status FROM outrider_runs"
            await eventually(lambda: db.execute(query).fetchone() == ("failed",))
        db.close()
        assert await read_events(w, run) == events


async def test_a_store_that_cannot_be_used_is_told_and_does_not_stop_requests(tmp_path):
    """In `/ready`, which stays 200, and in the metrics, until it can be used again."""

    async def told(w):
        async with w.http.get(w.gateway.url + "/ready") as response:
            assert response.status == 200
            return (await response.json())["runs"], await w.metric("outrider_runs_healthy")

    async with world(lambda _request: hang_after(1), runs=section(tmp_path, timeout_s=1.0)) as w:
        run = await start(w)
        await read_events(w, run, most=1)
        assert await told(w) == ("ok", 1.0)
        assert await w.metric("outrider_runs_open") == 1.0
        db = await locked(tmp_path)
        async with asyncio.timeout(60):
            while await told(w) != ("store unavailable", 0.0):
                await asyncio.sleep(0.01)
            async with w.http.post(f"{w.gateway.url}{RUNS}{run}/cancel") as response:
                assert response.status == 200
            assert await w.metric("outrider_runs_unsaved") == 1.0
            unlock(db)
            while await told(w) != ("ok", 1.0) or await w.metric("outrider_runs_unsaved"):
                await asyncio.sleep(0.01)
    async with world() as w:
        assert await told(w) == ("not kept", 0.0)


def age(file, by_s):
    """Make all runs that have ended so much older."""
    with closing(sqlite3.connect(file)) as db, db:
        assert db.execute("UPDATE outrider_runs SET expires_at = expires_at - ?", (by_s,)).rowcount == 1


async def test_runs_expire(tmp_path):
    """After their end; an id that has expired is a 404."""
    async with world(runs=section(tmp_path, keep_s=60)) as w:
        run = await start(w)
        await read_events(w, run)
        assert (await show(w, run))["http"] == 200
        await asyncio.to_thread(age, tmp_path / "runs.sqlite", 61)
        assert (await show(w, run))["http"] == 404
        with sqlite3.connect(tmp_path / "runs.sqlite") as db:
            await eventually(lambda: db.execute("SELECT count(*) FROM outrider_run_events").fetchone() == (0,))
        db.close()


async def test_a_run_waits_for_a_lane_that_is_away(tmp_path):
    """One that was accepted is not lost when its turn comes at a bad time; its deadline ends the waiting."""
    admission = AdmissionSection(max_in_flight=1, queue_timeout_s=0.1)
    async with world(lambda _request: hang_after(1), runs=section(tmp_path), admission=admission) as w:
        first = await start(w)
        second, third = await start(w), await start(w, headers={"x-outrider-deadline-ms": "1500"})
        await read_events(w, first, most=1)
        await asyncio.sleep(0.4)  # longer than anybody may queue
        assert (await show(w, second))["status"] == "queued"
        assert error_of(await read_events(w, third))["code"] == "deadline_exceeded"
        w.scripted.reply = paced()
        async with w.http.post(f"{w.gateway.url}{RUNS}{first}/cancel") as response:
            assert response.status == 200
        assert text_of(await read_events(w, second)) == TEXT


async def test_a_key_that_is_gone_fails_its_runs(tmp_path):
    """A run that waited is read again by the keys that are in force."""
    key = KeySection(name="a", sha256=sha256(b"a").hexdigest())
    bearer = {"Authorization": "Bearer a"}
    admission = AdmissionSection(max_in_flight=1)
    auth = AuthSection(keys=(key,))
    async with world(lambda _request: hang_after(1), runs=section(tmp_path), auth=auth, admission=admission) as w:
        await start(w, headers=bearer)
        waiting = await start(w, headers=bearer)
    admin = AuthSection(keys=(KeySection(name="b", sha256=sha256(b"b").hexdigest(), is_admin=True),))
    async with world(runs=section(tmp_path), auth=admin) as w:
        headers = {"Authorization": "Bearer b"}
        while (shown := await show(w, waiting, headers))["status"] == "queued":
            await asyncio.sleep(0.01)
    assert (shown["status"], shown["error"]["code"]) == ("failed", "invalid_api_key")


async def test_without_a_store_nothing_is_promised(tmp_path):
    """A run is refused by name, and there are none to be found; a store that cannot be used stops the start."""
    async with world() as w:
        async with w.chat(**BACKGROUND) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, "outrider.background")
        assert (await show(w, "run_x"))["http"] == 404
    (tmp_path / "runs.sqlite").write_bytes(b"not a database" * 99)
    with pytest.raises(ConfigError, match=r"runs\.url"):
        async with world(runs=section(tmp_path)):
            pass
