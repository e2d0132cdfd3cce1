"""From outcomes to learning, and the file that keeps it over restarts."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gateway.world import eventually
from outrider.config import packaged_data
from outrider.core import Hints, LaneAbility, LaneLoad, LaneView, Outcome, SpecStats
from outrider.dispatch.learning import LearningStore, feedback_of, kept, record_of
from outrider.errors import ConfigError
from outrider.policy.evaluate import Record
from outrider.policy.features import extract_features
from outrider.policy.learning import Learner
from outrider.policy.loader import Source, load_policies
from outrider.policy.priors import Cell

STATS = SpecStats(10, 12, (4, 2, 2, 2))
KEY = {"model": "m", "build": "1"}


def decided():
    policies = load_policies(Source([packaged_data("policies")]))
    body = {"messages": [{"role": "user", "content": "Write a Python function."}], "temperature": 0}
    view = LaneView(LaneAbility.embedded("one"), LaneLoad(0, 0, 16, 0.0))
    return policies, policies.decide(extract_features(body, Hints()), Hints(), [view], 0.0)


def finished():
    return Outcome(200, stats=STATS, num_completion_tokens=23, phases={"decode": 0.5})


@pytest.mark.parametrize("status", [499, 500, 503])
def test_only_answers_teach(status):
    """What was broken off says nothing about speed."""
    assert feedback_of(Outcome(status, "x", STATS)) is None
    feedback = feedback_of(finished())
    assert (feedback.stats, feedback.num_tokens, feedback.decode_s) == (STATS, 23, 0.5)


def test_nothing_of_a_text_is_stored():
    """Where an answer's text is at hand for a replay."""
    _, decision = decided()
    outcome = finished()
    outcome.text = "the cat sat"
    assert "sat" not in json.dumps(record_of(decision, outcome))


async def test_saving_what_was_learnt_of_many_tenants_holds_up_nobody(tmp_path: Path):
    """The loop's own share of it is less than `json` alone would take, and the writing is done by another thread."""
    learner, store = Learner(), LearningStore(tmp_path / "learnt.sqlite")
    for i in range(5000):
        cell = Cell("ngram", False, 0, "code", 0, f"tenant-{i}")
        learner.acceptance.update(cell, STATS, 3)
    by_json, by_save = [], []
    gc.disable()
    try:
        for _ in range(5):
            began_s = time.thread_time()
            json.dumps(learner.to_state(KEY))
            dumped_s = time.thread_time()
            await store.save(learner, KEY)
            by_json.append(dumped_s - began_s)
            by_save.append(time.thread_time() - dumped_s)
    finally:
        gc.enable()
    assert min(by_save) < 0.8 * min(by_json)
    again = store.load(KEY)
    assert again.acceptance.curve(cell).hazards == learner.acceptance.curve(cell).hazards
    store.close()


async def test_what_was_learnt_survives_a_restart(tmp_path: Path):
    """On the same model and build, and not on others; saving twice keeps the later."""
    policies, decision = decided()
    path = tmp_path / "learnt.sqlite"
    store = LearningStore(path)
    assert store.load(KEY).ledgers == {}
    await store.save(Learner(), KEY)
    policies.learn(decision, feedback_of(finished()))
    await store.save(policies.learner, KEY)
    store.close()
    again = LearningStore(path)
    assert again.load(KEY).to_state(KEY) == policies.learner.to_state(KEY)
    assert again.load(KEY | {"build": "2"}).ledgers == {}
    again.close()


def test_lanes_that_another_version_described_are_refused(tmp_path: Path):
    """Their costs would be taken for usual ones; the message says what to do."""
    store = LearningStore(tmp_path / "learnt.sqlite")
    with sqlite3.connect(tmp_path / "learnt.sqlite") as db:
        old = json.dumps({"name": "", "drafters": [], "cost": {"version": 1, "read_s": 1.0}})
        db.execute("INSERT INTO makes VALUES ('a', ?)", (old,))
    with pytest.raises(ConfigError, match=r"another version .* begin a new one"):
        store.makes()
    store.close()


async def test_records_are_kept_in_order_and_can_be_replayed(tmp_path: Path):
    """Written with the next save, and readable as records, with what their lane could do."""
    _, decision = decided()
    store = LearningStore(tmp_path / "learnt.sqlite")
    for _ in range(3):
        store.record(decision, finished())
    assert list(store.records()) == []
    await store.save(Learner(), KEY)
    found, makes = list(store.records()), store.makes()
    store.close()
    make = found[0].pop("make")
    assert found[0] == json.loads(json.dumps(record_of(decision, finished())))
    assert len(found) == 3
    assert {digest: asdict(able) for digest, able in makes.items()} == {
        make: asdict(replace(decision.option.lane, name=""))
    }
    record = Record.from_wire(json.loads(json.dumps(found[0])))
    assert (record.plan, record.stats, record.num_running) == (decision.plan, STATS, 1)
    assert record.features == decision.features


def test_a_file_that_is_no_store_is_refused(tmp_path: Path):
    """With its name."""
    path = tmp_path / "x.sqlite"
    path.write_text("not a database, but long enough to be looked at" * 10, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"x\.sqlite: cannot be used as a learning store"):
        LearningStore(path)


async def test_a_locked_file_blocks_nobody_and_loses_nothing(tmp_path: Path, caplog):
    """The loop goes on while the write waits and fails; the next one has what the failed one had."""
    _, decision = decided()
    path = tmp_path / "learnt.sqlite"
    store, other = LearningStore(path), sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.record(decision, finished())
    saving = asyncio.create_task(store.save(Learner(), KEY))
    slowest_s = 0.0
    while not saving.done():
        began_s = time.monotonic()
        await asyncio.sleep(0.01)
        slowest_s = max(slowest_s, time.monotonic() - began_s)
    assert slowest_s < 0.5
    assert "could not be saved: database is locked" in caplog.text
    other.execute("ROLLBACK")
    store.record(decision, finished())
    await store.save(Learner(), KEY)
    assert {record["make"] for record in store.records()} == set(store.makes())
    assert len(list(store.records())) == 2
    other.close()
    store.close()


async def test_what_is_learnt_is_saved_again_when_the_file_can_be_written_again(tmp_path: Path, caplog):
    """A failure does not end the saving; at the end the file is written and closed."""
    policies, decision = decided()
    path, away = tmp_path / "learnt.sqlite", tmp_path / "away.sqlite"
    store = LearningStore(path)
    keeping = kept(store, policies.learner, KEY, interval_s=0.02)
    await anext(keeping)
    path.rename(away)  # SQLite does not write to a file that is not where it was
    store.record(decision, finished())
    await eventually(lambda: caplog.text.count("readonly database") >= 2)
    away.rename(path)
    await eventually(lambda: len(list(store.records())) == 1)
    store.record(decision, finished())
    policies.learner.ledger("code").num_decided = 5
    assert await anext(keeping, None) is None
    again = LearningStore(path)
    assert len(list(again.records())) == 2
    assert again.load(KEY).ledgers["code"].num_decided == 5
    again.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store.load(KEY)


async def test_a_last_write_that_fails_closes_the_file_too(tmp_path: Path):
    """The shutdown goes on."""
    store = LearningStore(tmp_path / "learnt.sqlite")
    keeping = kept(store, Learner(), KEY)
    await anext(keeping)
    (tmp_path / "learnt.sqlite").unlink()
    assert await anext(keeping, None) is None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store.load(KEY)


async def test_processes_that_share_a_file_keep_apart_what_they_learn(tmp_path: Path):
    """Each goes on from its own; one that has nothing yet begins with the first one's; records are of all."""
    policies, decision = decided()
    first, second = (LearningStore(tmp_path / "learnt.sqlite", worker) for worker in (0, 1))
    await first.save(policies.learner, KEY)
    assert second.load(KEY).to_state(KEY) == policies.learner.to_state(KEY)
    own = Learner()
    own.ledger("mine").num_decided = 3
    for store, learner in ((first, policies.learner), (second, own)):
        store.record(decision, finished())
        await store.save(learner, KEY)
    assert second.load(KEY).ledgers["mine"].num_decided == 3
    assert "mine" not in first.load(KEY).ledgers
    assert second.load(KEY | {"build": "2"}).ledgers == {}
    assert len(list(first.records())) == 2
    first.close()
    second.close()
