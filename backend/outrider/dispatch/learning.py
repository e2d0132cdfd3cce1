"""From outcomes to the policy's learning, and the SQLite file that keeps both over restarts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from outrider.config import Config
from outrider.core import LaneAbility, Outcome
from outrider.errors import ConfigError
from outrider.policy.decision import Decision
from outrider.policy.learning import Feedback, Learner
from outrider.version import __version__

logger = logging.getLogger(__name__)

#: Recorded requests that are kept; the oldest go first.
_MAX_RECORDS = 100_000
#: Seconds between two writes of what was learnt.
_SAVE_INTERVAL_S = 60.0
#: How long a write waits for another process that holds the file.
_LOCK_TIMEOUT_S = 1.0
#: Reads and writes lanes as JSON; keys that nobody knows are refused.
LANES = TypeAdapter(tuple[LaneAbility, ...], config=ConfigDict(extra="forbid"))


def feedback_of(outcome: Outcome) -> Feedback | None:
    """What the policy may learn from how a request ended; None when it did not end well."""
    if outcome.status != 200:
        return None
    return Feedback(outcome.stats, outcome.num_completion_tokens, outcome.phases.get("decode"))


def record_of(decision: Decision, outcome: Outcome) -> dict[str, Any]:
    """One request as `outrider policy replay` and `tune` read it: what was seen, decided and observed."""
    stats, seen = outcome.stats, decision.option.seen
    return {
        "features": asdict(decision.features),
        "plan": decision.plan.to_wire(),
        "workload": decision.workload,
        "rule": decision.rule,
        "lane": decision.lane,
        "num_running": seen.num_running if seen.is_known else None,
        "num_waiting": seen.num_waiting,
        "histogram": None if stats is None else list(stats.histogram),
        "num_proposed": None if stats is None else stats.num_proposed,
        "by_draft": None if stats is None else stats.by_draft,
        "num_tokens": outcome.num_completion_tokens,
        "decode_s": outcome.phases.get("decode"),
    }


def _make_of(ability: LaneAbility) -> tuple[str, str]:
    """What a lane could do, whatever its name, and the digest of that."""
    (told,) = LANES.dump_python((replace(ability, name=""),), mode="json")
    text = orjson.dumps(told, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:16], text.decode()


class LearningStore:
    """One SQLite file: what was learnt, and the last requests with what their lanes could do. ConfigError when it
    cannot be used."""

    def __init__(self, path: Path, worker: int = 0) -> None:
        """Of several processes with one file each keeps what it has learnt; `worker` is its number."""
        self._path = path
        self._row = worker + 1
        self._pending: deque[tuple[str]] = deque(maxlen=_MAX_RECORDS)
        self._makes: dict[LaneAbility, tuple[str, str]] = {}
        """Of the lanes of pending requests."""
        try:
            self._db = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, check_same_thread=False)
            with self._db:
                self._db.execute("CREATE TABLE IF NOT EXISTS learnt (id INTEGER PRIMARY KEY, state TEXT NOT NULL)")
                self._db.execute("CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, record TEXT NOT NULL)")
                self._db.execute("CREATE TABLE IF NOT EXISTS makes (digest TEXT PRIMARY KEY, ability TEXT NOT NULL)")
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: cannot be used as a learning store: {error}") from error

    def load(self, key: Mapping[str, str]) -> Learner:
        """What was learnt on this model and build, by the first process where this one has nothing; a fresh learner
        when nothing was, or on others."""
        rows = self._db.execute("SELECT state FROM learnt WHERE id IN (1, ?) ORDER BY id DESC", (self._row,))
        states = [json.loads(text) for (text,) in rows]
        return Learner.from_state(next((one for one in states if one.get("key") == key), None), dict(key))

    async def save(self, learner: Learner, key: Mapping[str, str]) -> None:
        """Replace what was learnt and add the requests since the last time. One at a time.

        A failure is logged, and the requests are kept for the next time.
        """
        # All else waits for this: of many tenants it is megabytes, for which `json` takes a third of a second.
        state, rows, makes = orjson.dumps(learner.to_state(dict(key))).decode(), list(self._pending), self._makes
        self._pending.clear()
        self._makes = {}
        try:
            await asyncio.to_thread(self._write, state, rows, list(makes.values()))
        except sqlite3.Error as error:
            logger.warning("%s: what was learnt could not be saved: %s", self._path, error)
            self._pending = deque([*rows, *self._pending], _MAX_RECORDS)
            self._makes = makes | self._makes

    def _write(self, state: str, rows: list[tuple[str]], makes: list[tuple[str, str]]) -> None:
        """In one transaction."""
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO learnt VALUES (?, ?)", (self._row, state))
            self._db.executemany("INSERT INTO records (record) VALUES (?)", rows)
            self._db.executemany("INSERT OR IGNORE INTO makes VALUES (?, ?)", makes)
            self._db.execute("DELETE FROM records WHERE id <= (SELECT max(id) FROM records) - ?", (_MAX_RECORDS,))

    def record(self, decision: Decision, outcome: Outcome) -> None:
        """Keep one request; written with the next `save`, since a request must not wait for the disk."""
        ability = decision.option.lane
        make = self._makes.get(ability)
        if make is None:
            make = self._makes[ability] = _make_of(ability)
        record = record_of(decision, outcome) | {"make": make[0]}
        self._pending.append((orjson.dumps(record).decode(),))

    def records(self) -> Iterator[dict[str, Any]]:
        """The kept requests, oldest first."""
        for (text,) in self._db.execute("SELECT record FROM records ORDER BY id"):
            yield json.loads(text)

    def makes(self) -> dict[str, LaneAbility]:
        """What lanes of the kept requests could do, without their names, by the digest that their records have.

        ConfigError where another version wrote that: its costs would be taken for usual ones.
        """
        rows = self._db.execute("SELECT digest, ability FROM makes")
        try:
            return {digest: LANES.validate_json(f"[{text}]")[0] for digest, text in rows}
        except ValidationError as error:
            what = "another version wrote what the lanes of its requests could do; begin a new one"
            raise ConfigError(f"{self._path}: {what}") from error

    def close(self) -> None:
        """Close the database; what was not saved is lost."""
        self._db.close()


def learning_key(config: Config) -> dict[str, str]:
    """What is learnt holds for these lanes and this build, and is begun anew on others."""
    return {"build": __version__, "lanes": str(config.lanes)}


async def kept(
    store: LearningStore, learner: Learner, key: Mapping[str, str], *, interval_s: float = _SAVE_INTERVAL_S
) -> AsyncIterator[None]:
    """Save what is learnt now and then, and at the end; the file is closed then."""

    is_over = asyncio.Event()

    async def save_regularly() -> None:
        is_last = False
        while not is_last:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await is_over.wait()
            is_last = is_over.is_set()  # before the write: what comes while one is written is for the next
            await store.save(learner, key)

    task = asyncio.create_task(save_regularly())
    yield
    is_over.set()
    try:
        await task
    finally:
        store.close()
