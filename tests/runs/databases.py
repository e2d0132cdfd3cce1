"""Databases of tests: a SQLite file, and a PostgreSQL cluster of their own where its programs are installed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from not_run import not_run
from outrider.config import RunsSection
from outrider.runs.record import Record


def section(url: str, **options) -> RunsSection:
    return RunsSection(url=url, **({"lease_s": 0.4, "timeout_s": 20.0} | options))


def sqlite_url(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder}/runs.sqlite"


def record(name: str = "run_1", **fields) -> Record:
    given = {"path": "/v1/chat/completions", "tenant": "t", "key": None, "request_id": "r", "body": b"{}",
             "headers": {"a": "b"}, "created_at": 1.0, "owner": "me", "beat_at": 1.0}  # fmt: skip
    return Record(name, **(given | fields))


def _program(name: str) -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}")) or [Path(shutil.which(name) or name)]
    return found[-1]


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a fresh server without a port; skips, saying why, where there is none to start."""
    if not _program("initdb").exists() or not _program("postgres").exists():
        not_run("durable runs on PostgreSQL, whose programs are not installed")
    # The server refuses to run as root, so that somebody else must be able to.
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    try:
        if as_user:
            shutil.chown(folder, "postgres")
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([*as_user, _program("initdb"), "-D", folder / "data", "-A", "trust", "-N", "-U", "o"], **quiet)
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        control = [*as_user, _program("pg_ctl"), "-D", folder / "data", "-w", "-o", options, "-l", folder / "log"]
        subprocess.run([*control, "start"], **quiet)
        try:
            yield f"postgresql+asyncpg://o@/postgres?host={folder}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can be written that is longer than a kilobyte: writes fail as they do on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
        yield


async def locked(folder: Path) -> sqlite3.Connection:
    """Hold the file's only writer's place; it is waited for beside the loop, on which who has it may depend."""
    other = sqlite3.connect(folder / "runs.sqlite", isolation_level=None, check_same_thread=False)
    await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
    return other


def unlock(other: sqlite3.Connection) -> None:
    other.execute("ROLLBACK")
    other.close()
