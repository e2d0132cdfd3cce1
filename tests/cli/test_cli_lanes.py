from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.runtimes.scripted import ScriptedLane

CONFIGS = Path(__file__).parents[2] / "configs"


def test_a_dry_run_prints_every_command_and_what_others_have_to_run():
    """With the environment of each; lanes that somebody else runs have none."""
    result = CliRunner().invoke(app, ["lanes", "plan", "--config", str(CONFIGS / "sglang-gpu-8.yaml")])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line for line in lines if line.startswith("#")] == [
        "# eagle3-tree",
        "# eagle3-chain",
        "# ngram",
        "# plain",
    ]
    assert (
        lines[1].startswith("env CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1 ")
        and "sglang.launch_server" in lines[1]
    )
    fleet = CliRunner().invoke(app, ["lanes", "plan", "--config", str(CONFIGS / "fleet.yaml")]).output
    assert "# plain: nothing to start, each address of http://sglang-plain" in fleet
    assert "# large, to be started on machine 1 by you" in fleet and "--node-rank 1" in fleet


async def test_show_asks_lanes_that_are_there(tmp_path: Path) -> None:
    """And prints what they are, in lines where rows have no room, then ends; without any such lane it says so."""
    async with ScriptedLane() as scripted:
        file = tmp_path / "c.yaml"
        file.write_text(f"lanes: [{{name: theirs, kind: url, urls: ['{scripted.url}']}}]", encoding="utf-8")
        wide, code = await run("show", "--config", str(file), "--seconds", "60")
        narrow, _ = await run("show", "--config", str(file), "--seconds", "60", columns=60)
    assert code == 0
    for part in ("theirs", "ready", "scripted", "ngram 1-16", "prediction 1-16", "0+0 of 16"):
        assert part in wide and part in narrow
    assert max(map(len, narrow.splitlines())) <= 60
    assert [line.split()[1] for line in narrow.splitlines() if "lane" in line or "state" in line] == ["lane", "state"]
    output, code = await run("show")
    assert code != 0 and "no lane of the kind url" in output


async def test_up_tells_states_as_they_change_where_no_table_can_follow(tmp_path: Path) -> None:
    """A log says that a lane is ready when it is, and not when the command ends."""
    async with ScriptedLane() as scripted:
        file = tmp_path / "c.yaml"
        file.write_text(f"lanes: [{{name: theirs, kind: url, urls: ['{scripted.url}']}}]", encoding="utf-8")
        process = await started("up", "--config", str(file))
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while b"ready" not in await process.stdout.readline():
                assert process.returncode is None
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 0


async def run(*arguments: str, columns: int = 300) -> tuple[str, int]:
    process = await started(*arguments, columns=columns)
    output, _ = await process.communicate()
    assert process.returncode is not None
    return output.decode(), process.returncode


async def started(*arguments: str, columns: int = 300) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outrider", "lanes", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=os.environ | {"COLUMNS": str(columns)},
    )  # fmt: skip
