"""Commands and how they end; a gateway or an engine as a process, asked as clusters do, and stopped by a signal."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

_START_S = 60.0
_STOP_S = 20.0


def ran(
    *command: str | Path, cwd: Path | None = None, variables: Mapping[str, str] | None = None, status: int = 0
) -> subprocess.CompletedProcess[str]:
    """A command that has ended, which must be with that status."""
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == status, f"{command[0]}: {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done


def status_of(pid: int) -> str:
    """What the kernel says of a process."""
    return Path(f"/proc/{pid}/status").read_text(encoding="utf-8")


@dataclass
class Served:
    """Where it listens, and once it has ended how, and what it printed."""

    pid: int
    url: str = ""
    status: int | None = None
    log: str = ""


@asynccontextmanager
async def serving(
    command: list[str],
    *,
    cwd: Path,
    variables: Mapping[str, str],
    stderr: int = asyncio.subprocess.STDOUT,
    says: str = "listens on",
) -> AsyncIterator[Served]:
    """For the block, from when it `says` where it is; then it gets SIGTERM, and must end by itself."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=dict(variables), stdout=asyncio.subprocess.PIPE, stderr=stderr
    )
    assert process.stdout
    served = Served(process.pid)
    try:
        async with asyncio.timeout(_START_S):
            while not (found := re.search(rf"{says} (http://\S+)", served.log)):
                line = await process.stdout.readline()
                assert line, f"it ended: {served.log}"
                served.log += line.decode()
        served.url = found[1].replace("0.0.0.0", "127.0.0.1")
        yield served
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_STOP_S):
            rest, _ = await process.communicate()
        served.log += rest.decode()
        served.status = process.returncode
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def asked(url: str) -> None:
    """It lives, becomes ready, answers a request with a report, and counts it."""
    async with aiohttp.ClientSession(url) as http:
        async with http.get("/live") as response:
            assert response.status == 200
        async with asyncio.timeout(_START_S):
            while True:
                async with http.get("/ready") as response:
                    if response.status == 200:
                        break
                await asyncio.sleep(0.1)
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
        async with http.post("/v1/chat/completions", json=body) as response:
            answer = await response.json()
            assert response.status == 200 and answer["outrider"]["effective"], answer
        async with http.get("/metrics") as response:
            page = await response.text()
        assert 'outrider_requests_total{route="/v1/chat/completions",status="200"} 1.0' in page
