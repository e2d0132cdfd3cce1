"""The store of runs, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from dataclasses import replace

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from outrider.errors import ConfigError, StoreUnavailable
from outrider.runs.record import Ending
from outrider.runs.store import MAX_WAITING, RunStore
from runs.databases import full_disk, postgres, record, section, sqlite_url


@pytest.fixture(scope="module")
def server():
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    return sqlite_url(tmp_path) if request.param == "sqlite" else request.getfixturevalue("server")


@pytest.fixture
async def store(url):
    """An open store without runs."""
    made = RunStore(section(url))
    await made.open()
    yield made
    for run in [f"run_{i}" for i in range(9)]:
        await made.delete(run)
    await made.close()


async def test_a_run_comes_back_as_it_was_kept(store):
    """Every field, bytes and JSON too."""
    kept = record(body=b'{"a":"\xc3\xa9"}', deadline_at=3.5, headers={"x": "y"})
    await store.add(kept)
    assert await store.get("run_1") == kept
    assert await store.get("run_2") is None


async def test_events_are_numbered_from_one_without_a_gap(store):
    """However many come at once; behind a number, up to a limit."""
    await store.add(record())
    assert await store.begin("run_1", "me", 2.0)
    for events in ([b"a"], [b"b", b"c"], [b"d"]):
        assert await store.append("run_1", "me", events, 3.0)
    assert await store.end("run_1", "me", Ending("completed", [b"e"], b"{}"), 4.0, 60.0)
    assert await store.events("run_1", 0, 9) == [(i + 1, b"abcde"[i : i + 1]) for i in range(5)]
    assert await store.events("run_1", 2, 2) == [(3, b"c"), (4, b"d")]
    ended = await store.get("run_1")
    assert (ended.status, ended.num_events, ended.answer, ended.owner) == ("completed", 5, b"{}", None)
    assert (ended.started_at, ended.ended_at, ended.expires_at) == (2.0, 4.0, 64.0)


async def test_runs_are_listed_newest_first(store):
    """Ties by id; of one tenant or of all, behind a run, without the expired ones and without what is large."""
    for i, (tenant, at) in enumerate([("t", 1.0), ("t", 2.0), ("u", 3.0), ("t", 2.0)]):
        await store.add(record(f"run_{i}", tenant=tenant, created_at=at, body=b"large", answer=b"large"))
    await store.add(record("run_4", created_at=9.0, expires_at=5.0))
    ours = await store.newest("t", 9, None, 6.0)
    assert [one.id for one in ours] == ["run_3", "run_1", "run_0"]
    assert {(one.body, one.answer) for one in ours} == {(b"", None)}
    assert [one.id for one in await store.newest("t", 1, ours[0], 6.0)] == ["run_1"]
    assert [one.id for one in await store.newest(None, 9, None, 6.0)] == ["run_2", "run_3", "run_1", "run_0"]


async def test_a_run_ends_once_and_takes_nothing_after_its_end(store):
    """Nor before its beginning, nor from somebody who does not own it."""
    await store.add(record())
    assert not await store.append("run_1", "me", [b"early"], 1.0)
    assert not await store.begin("run_1", "other", 1.0)
    assert await store.begin("run_1", "me", 1.0)
    assert not await store.begin("run_1", "me", 1.0)
    assert not await store.append("run_1", "other", [b"x"], 1.0)
    assert not await store.end("run_1", "other", Ending("failed", [b"z"]), 2.0, 1.0)
    ends = await asyncio.gather(
        *(store.end("run_1", "me", Ending(s, [b"z"]), 2.0, 1.0) for s in ("failed", "cancelled"))
    )
    assert sorted(ends) == [False, True]
    assert not await store.append("run_1", "me", [b"late"], 3.0)
    assert [data for _, data in await store.events("run_1", 0, 9)] == [b"z"]


async def test_abandoned_runs_are_taken_by_one(store):
    """Those of nobody and those whose owner is silent; among several who try, one gets it."""
    await store.add(record("run_1", beat_at=100.0))
    await store.add(record("run_2", owner="silent", beat_at=1.0))
    await store.add(record("run_3", owner=None, created_at=0.5))
    await store.add(record("run_4", status="failed", owner=None))
    assert await store.beats("other") == {"me": 100.0, "silent": 1.0}
    assert await store.beats("me") == {"silent": 1.0}
    found = await store.abandoned(["silent"])
    assert [one.id for one in found] == ["run_3", "run_2"]
    took = await asyncio.gather(*(store.take(found[1], f"p{i}", 60.0) for i in range(4)))
    assert sum(took) == 1
    assert (await store.get("run_2")).owner == f"p{took.index(True)}"
    await store.release("me")
    assert (await store.get("run_1")).owner is None


async def test_a_beat_says_who_is_to_be_cancelled(store):
    """And keeps the owner's runs from being taken."""
    await store.add(record("run_1"))
    await store.add(record("run_2"))
    await store.ask_cancel("run_2")
    assert await store.beat("me", 90.0) == ["run_2"]
    assert (await store.get("run_1")).beat_at == 90.0
    assert await store.beat("other", 95.0) == []


async def test_what_has_expired_is_forgotten_with_its_events(store):
    """Open runs are not."""
    for name in ("run_1", "run_2"):
        await store.add(record(name))
        await store.begin(name, "me", 1.0)
        await store.append(name, "me", [b"x"], 1.0)
    await store.end("run_1", "me", Ending("completed"), 10.0, 5.0)
    await store.expire(14.0)
    assert await store.get("run_1")
    await store.expire(16.0)
    assert await store.get("run_1") is None and await store.events("run_1", 0, 9) == []
    assert await store.get("run_2") and await store.events("run_2", 0, 9)


async def test_a_write_whose_caller_is_cancelled_is_whole(store):
    """All of its events or none, and the store goes on."""
    await store.add(record())
    await store.begin("run_1", "me", 1.0)
    for _ in range(12):
        task = asyncio.create_task(store.append("run_1", "me", [b"a", b"b"], 2.0))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert await store.append("run_1", "me", [b"z"], 3.0)
    events = await store.events("run_1", 0, 99)
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    assert b"".join(data for _, data in events) == b"ab" * ((len(events) - 1) // 2) + b"z"


async def test_a_locked_file_is_an_error_in_time_and_nothing_is_lost(tmp_path):
    """The store answers again when the lock is gone."""
    store = RunStore(section(sqlite_url(tmp_path), timeout_s=1.0))
    await store.open()
    await store.add(record())
    other = sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"locked|does not answer"):
        await store.begin("run_1", "me", 1.0)
    assert await store.get("run_1") == record()  # readers do not wait for a writer
    other.execute("ROLLBACK")
    other.close()
    assert await store.begin("run_1", "me", 1.0)
    await store.close()


async def test_a_full_disk_is_an_error_and_nothing_is_half_written(tmp_path):
    """What was kept stays, and the store goes on when there is room again."""
    store = RunStore(section(sqlite_url(tmp_path)))
    await store.open()
    await store.add(record())
    await store.begin("run_1", "me", 1.0)
    assert await store.append("run_1", "me", [b"a"], 1.0)
    with full_disk(), pytest.raises(StoreUnavailable):
        await store.append("run_1", "me", [b"b" * 50_000], 1.0)
    assert await store.events("run_1", 0, 9) == [(1, b"a")]
    assert await store.append("run_1", "me", [b"c"], 1.0)
    assert await store.events("run_1", 1, 9) == [(2, b"c")]
    await store.close()


async def test_the_file_is_private_and_written_through(tmp_path):
    """Prompts stand in it; a commit is on the disk before it is told of."""
    store = RunStore(section(sqlite_url(tmp_path)))
    await store.open()
    engine = create_async_engine(sqlite_url(tmp_path))
    async with engine.connect() as connection:
        assert (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar() == "wal"
    await engine.dispose()
    await store.close()
    assert stat.S_IMODE((tmp_path / "runs.sqlite").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "url",
    [
        "nothing",
        "sqlite+aiosqlite://",
        "sqlite+aiosqlite:////missing/x.sqlite",
        "mysql+nodriver://h/d",
        "sqlite:///x",
    ],
)
def test_a_url_that_cannot_be_used_is_an_error_of_the_configuration(url):
    """Named, before anything starts."""
    with pytest.raises(ConfigError, match=r"runs\.url"):
        RunStore(section(url))


async def test_a_password_is_not_shown():
    """Neither in what is printed of the store nor in its errors."""
    store = RunStore(section("postgresql+asyncpg://me:hunter2@127.0.0.1:1/d"))
    assert "hunter2" not in store.where
    with pytest.raises(StoreUnavailable) as caught:
        await store.add(replace(record(), id="run_9"))
    assert "hunter2" not in caught.value.message
    await store.close()


async def test_a_store_that_hangs_is_refused_at_once_and_holds_up_no_end(tmp_path):
    """What waits for it is bounded, and closing gives up what does not come."""
    made = RunStore(section(sqlite_url(tmp_path), timeout_s=0.2))
    await made.open()
    with sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        asked = [asyncio.create_task(made.add(record(f"run_{i}"))) for i in range(MAX_WAITING + 1)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(StoreUnavailable, match=f"{MAX_WAITING} operations wait"):
            asked[-1].result()
        async with asyncio.timeout(60):
            await made.close()
            await asyncio.gather(*asked, return_exceptions=True)
        other.execute("ROLLBACK")
