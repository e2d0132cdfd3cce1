"""`outrider doctor` from the command line, over real files, ports, databases and lanes."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.engine.profile import table_path
from outrider.runtimes.scripted import ScriptedLane


def write(folder: Path, text: str, model: object = "/nowhere") -> Path:
    file = folder / "c.yaml"
    lanes = "" if "lanes:" in text else f"\nlanes: [{{model: {model}}}]"
    file.write_text(text + lanes, encoding="utf-8")
    return file


def examine(folder: Path, text: str, model: object = "/nowhere") -> tuple[int, dict[str, tuple[str, str, str]]]:
    """Exit code, and by name the level, what was found and the remedy."""
    arguments = ["doctor", "--config", str(write(folder, text, model)), "--json"]
    result = CliRunner().invoke(app, arguments, env={"OUTRIDER_CACHE": str(folder)})
    report = json.loads(result.stdout)
    assert report["ok"] is (result.exit_code == 0)
    return result.exit_code, {c["name"]: (c["level"], c["found"], c["remedy"]) for c in report["checks"]}


def test_a_sound_configuration_passes(tmp_path: Path, toy_folder: Path) -> None:
    """A missing cost table is a warning with the command that makes one; lines say the same as JSON."""
    text = f"server: {{port: 0}}\nruns: {{url: 'sqlite+aiosqlite:///{tmp_path}/runs.sqlite'}}"
    code, found = examine(tmp_path, text, toy_folder)
    assert code == 0
    assert {name: level for name, (level, _, _) in found.items() if name != "open files"} == {
        "config": "ok", "keys": "ok", "policies": "ok", "port": "ok", "disk cache": "ok", "runs": "ok",
        "lane embedded": "ok", "lane embedded cost": "warn",
    }  # fmt: skip
    assert found["lane embedded cost"][2] == f"outrider profile --model {toy_folder}"
    lines = CliRunner().invoke(app, ["doctor", "--config", str(tmp_path / "c.yaml")], env={"OUTRIDER_CACHE": "/tmp"})
    assert (
        lines.exit_code == 0 and "warn  lane embedded cost" in lines.stdout and "-> outrider profile" in lines.stdout
    )


@pytest.mark.parametrize(
    ("text", "name", "part"),
    [
        ("server: {prot: 1}", "config", "server.prot"),
        ("auth: {keys_file: /missing/keys.yaml}", "keys", "/missing/keys.yaml"),
        ("policy: {default: nothing}", "policies", "nothing"),
        ("server: {host: 192.0.2.1}", "port", "192.0.2.1"),
        ("server: {tls_certificate: /missing.pem}", "tls", "/missing.pem"),
        ("runs: {url: 'sqlite+aiosqlite:////missing/x.sqlite'}", "runs", "/missing/x.sqlite"),
        ("lanes: [{model: /missing}]", "lane embedded", "/missing"),
        (
            "lanes: [{name: a, kind: sglang, python: /missing/python}]",
            "lane a",
            "python: there is no /missing/python",
        ),
        ("lanes: [{name: a, kind: sglang, model: /missing/model}]", "lane a", "model: there is no /missing/model"),
        (f"lanes: [{{name: a, kind: sglang, model: x, python: {sys.executable}}}]", "lane a", "has no SGLang"),
        ("lanes: [{name: a, kind: sglang, model: x, python: /etc/passwd}]", "lane a", "cannot be run"),
    ],
)
def test_what_keeps_a_gateway_from_working_fails(tmp_path: Path, text: str, name: str, part: str) -> None:
    """By its name, with what was found and what to do; the exit code is 1."""
    code, found = examine(tmp_path, text)
    level, what, remedy = found[name]
    assert (code, level) == (1, "fail")
    assert part in what and remedy


def test_a_policy_that_is_wrong_is_named_by_its_line(tmp_path: Path) -> None:
    """As `outrider policy validate` names it."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "default.yaml").write_text("version: 1\ndrafters: {}\nsurprise: 2\n", encoding="utf-8")
    code, found = examine(tmp_path, f"policy: {{directories: [{tmp_path}/p]}}")
    assert code == 1 and "default.yaml:" in found["policies"][1]


def test_what_leaves_less_than_was_meant_warns(tmp_path: Path, toy_folder: Path) -> None:
    """No key on an open address, a port in use, few open files, no administrator: the exit code is 0."""
    digest = "0" * 64
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
        text = f"server: {{port: {port}}}\nauth: {{keys: [{{name: a, sha256: '{digest}'}}]}}"
        code, found = examine(tmp_path, f"{text}\nadmission: {{max_in_flight: {allowed}}}", toy_folder)
    assert code == 0
    assert [found[name][0] for name in ("keys", "port", "open files")] == ["warn"] * 3
    assert f"{allowed} allowed" in found["open files"][1]
    assert examine(tmp_path, "server: {host: 0.0.0.0, port: 0}", toy_folder)[1]["keys"][0] == "warn"


def test_a_damaged_cost_table_fails(tmp_path: Path, toy_folder: Path) -> None:
    """One that is there and says nothing."""
    path = table_path(toy_folder, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text("{}", encoding="utf-8")
    code, found = examine(tmp_path, "server: {port: 0}", toy_folder)
    assert code == 1 and found["lane embedded cost"][0] == "fail"


async def doctor(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outrider", "doctor", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=os.environ,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_lanes_of_others_are_asked(tmp_path: Path) -> None:
    """What they serve, whether our plugin is active; one that does not answer fails."""
    async with ScriptedLane() as ours, ScriptedLane() as theirs:
        theirs.info = {
            "outrider": None, "device": "cuda", "speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8,
        }  # fmt: skip
        lanes = [("ours", ours.url), ("theirs", theirs.url)]

        def config(lanes: list[tuple[str, str]]) -> str:
            listed = ", ".join(f"{{name: {name}, kind: url, urls: ['{url}']}}" for name, url in lanes)
            return str(write(tmp_path, f"server: {{port: 0}}\nlanes: [{listed}]"))

        code, output = await doctor("--config", config(lanes))
        assert code == 0, output
        assert "ok    lane ours" in output and "drafters: ngram k 7-7" in output
        assert "warn  lane theirs plugin" in output
        away = config([*lanes, ("away", "http://127.0.0.1:1")])
        code, output = await doctor("--config", away, "--seconds", "0.5")
    assert code == 1 and "fail  lane away" in output and "-> start it" in output


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("policy: {default: nothing}", "policies"),
        ("auth: {keys_file: /missing/keys.yaml}", "keys"),
        ("runs: {url: 'sqlite+aiosqlite:////missing/x.sqlite'}", "runs"),
    ],
)
async def test_lanes_are_asked_whatever_else_is_wrong(tmp_path: Path, section: str, name: str) -> None:
    """A broken policy, keys file or store is one finding, and the lane that somebody else runs another."""
    async with ScriptedLane() as lane:
        text = f"{section}\nserver: {{port: 0}}\nlanes: [{{name: there, kind: url, urls: ['{lane.url}']}}]"
        code, output = await doctor("--config", str(write(tmp_path, text)))
    assert code == 1
    assert f"fail  {name}" in output and "ok    lane there" in output, output
