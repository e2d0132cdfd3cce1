"""`outrider serve --workers 2` as real processes, and connections to a worker of one's choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from outrider.runtimes.scripted import ScriptedLane
from processes import children_of, read_until, start_command

ADMIN = {"Authorization": "Bearer admin-key"}
USER = {"Authorization": "Bearer user-key"}
#: A whole policy that decides nothing.
POLICY = "version: 1\nworkload: %s\ndescription: a test\ndrafters: {}\n"


@dataclass
class Crew:
    process: asyncio.subprocess.Process
    url: str
    folder: Path

    @property
    def workers(self) -> list[int]:
        return children_of(self.process.pid)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[list[aiohttp.ClientSession]]:
        """A kept-alive connection to each worker, by number."""
        sessions: list[aiohttp.ClientSession] = []
        found: dict[int, aiohttp.ClientSession] = {}
        try:
            async with asyncio.timeout(60):
                while len(found) < 2:
                    session = aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(limit=1))
                    sessions.append(session)
                    found.setdefault((await seen_by(session))["worker"], session)
            yield [found[i] for i in sorted(found)]
        finally:
            for session in sessions:
                await session.close()


async def seen_by(session: aiohttp.ClientSession) -> dict[str, Any]:
    async with session.get("/outrider/lanes", headers=ADMIN) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def until_ready(crew: Crew) -> None:
    """Both workers have a lane that takes requests."""
    async with asyncio.timeout(60), crew.connected() as sessions:
        for session in sessions:
            while not any(lane["state"] == "ready" for lane in (await seen_by(session))["lanes"]):
                await asyncio.sleep(0.05)


@asynccontextmanager
async def crew_over(lanes: list[dict[str, Any]], folder: Path, **sections: Any) -> AsyncIterator[Crew]:
    """It is killed at the end where it has not ended by itself."""
    (folder / "policies").mkdir()
    (folder / "policies" / "default.yaml").write_text(POLICY % "default", encoding="utf-8")
    keys = [
        {"name": name, "sha256": sha256(f"{name}-key".encode()).hexdigest()} | fields
        for name, fields in {"admin": {"is_admin": True}, "user": {"requests_per_min": 6}}.items()
    ]
    config = {
        "server": {"shutdown_grace_s": 10},
        "auth": {"keys": keys},
        "policy": {"directories": [str(folder / "policies")]},
        "lanes": lanes,
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config | sections), encoding="utf-8")
    process = await start_command(folder, "--config", str(file), "--workers", "2")
    try:
        url = (await read_until(process.stderr, r"http://127\.0\.0\.1:\d+")).group()
        crew = Crew(process, url, folder)
        await until_ready(crew)
        yield crew
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.communicate()


@asynccontextmanager
async def scripted_crew(folder: Path, reply: Any = None, **sections: Any) -> AsyncIterator[tuple[Crew, ScriptedLane]]:
    async with (
        ScriptedLane(reply) as lane,
        crew_over([{"name": "a", "kind": "url", "urls": [lane.url]}], folder, **sections) as crew,
    ):
        yield crew, lane
