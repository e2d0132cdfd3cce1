"""`outrider serve` as a user sees it, over a scripted lane and a profile that cannot be started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from outrider.runtimes.scripted import ScriptedLane


async def served(config: Path, last: str, **variables: str) -> tuple[str, int | None]:
    """All that it prints until a line holds `last`, and its exit code after Ctrl-C."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outrider", "serve", "--config", str(config),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=os.environ | variables,
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    async with asyncio.timeout(60):
        while not lines or last not in lines[-1]:
            lines.append((await process.stdout.readline()).decode())
            assert process.returncode is None, lines
        process.send_signal(signal.SIGINT)
        await process.communicate()
    return "".join(lines), process.returncode


@pytest.mark.parametrize("key", ["", "secret"])
async def test_what_is_shown_to_be_tried_can_be_tried(tmp_path: Path, key: str) -> None:
    """With the place for a key where one is needed; the key itself is not shown."""
    async with ScriptedLane() as lane:
        file = tmp_path / "c.yaml"
        file.write_text(
            f"server: {{port: 0}}\nlanes: [{{name: a, kind: url, urls: ['{lane.url}']}}]", encoding="utf-8"
        )
        output, code = await served(file, "Ctrl-C stops", OUTRIDER_API_KEY=key, OUTRIDER_CACHE=str(tmp_path))
    assert code == 0 and "model scripted is ready" in output and "secret" not in output
    assert ("Authorization: Bearer KEY" in output, 'api_key="KEY"' in output) == (bool(key), bool(key))


async def test_a_lane_that_cannot_be_started_is_told_by_its_key(tmp_path: Path) -> None:
    """Once a try, without the lines of a process that there was not."""
    file = tmp_path / "c.yaml"
    file.write_text("server: {port: 0}\nlanes: [{name: a, kind: sglang, python: /missing}]", encoding="utf-8")
    output, code = await served(file, "next start in 1.0 s", OUTRIDER_CACHE=str(tmp_path))
    told = [line.split("supervisor ")[1] for line in output.splitlines() if "/missing" in line]
    assert told == [f"lane a: python: there is no /missing; next start in {delay} s" for delay in ("0.5", "1.0")]
    assert code == 0
