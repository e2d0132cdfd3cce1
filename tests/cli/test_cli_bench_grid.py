"""`outrider bench grid` on the toy: the grid, what is kept, and what goes on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy_prompts import PROMPTS
from typer.testing import CliRunner, Result

from outrider.cli.bench.grid_cells import FILE, Grid
from outrider.cli.main import app
from outrider.errors import ConfigError
from outrider.plots.png import can_draw

SETTINGS = "ngram:3,suffix:4"


def run(out: Path, model: Path, *args: str) -> Result:
    prompts = out.parent / "prompts.yaml"
    prompts.write_text(PROMPTS, encoding="utf-8")
    options = ["--model", str(model), "--prompts", str(prompts), "--temperatures", "0,1", "--max-tokens", "12"]
    return CliRunner().invoke(app, ["bench", "grid", "--out", str(out), *options, *args], env={"COLUMNS": "200"})


def read(out: Path) -> Grid:
    return Grid.model_validate_json((out / FILE).read_bytes())


def test_a_grid_is_filled_and_reported(tmp_path: Path, toy_folder: Path) -> None:
    """Each task at each temperature with each drafter; greedy once, sampled three times; greedy texts are off's."""
    out = tmp_path / "grid"
    result = run(out, toy_folder, "--settings", SETTINGS, "--minutes", "1")
    assert result.exit_code == 0, result.output
    grid = read(out)
    assert len(grid.answers) == grid.num_planned == 3 * (2 + 2 * 3)
    assert {(one.task, one.temperature, str(one.setting)) for one in grid.answers} == {
        (task, heat, name)
        for task in ("quote", "creative")
        for heat in (0.0, 1.0)
        for name in ("off", "ngram k=3", "suffix k=4")
    }
    texts = {str(one.setting): one.token_ids for one in grid.answers if one.task == "quote" and not one.temperature}
    assert texts["ngram k=3"] == texts["suffix k=4"] == texts["off"]
    assert all(sum(i * n for i, n in enumerate(one.histogram)) == one.num_accepted for one in grid.answers)
    markdown = (out / "grid.md").read_text("utf-8")
    assert "| quote | 0 | ngram | 3 |" in markdown and "1 of 1" in markdown
    names = {path.name for path in out.iterdir()}
    assert names == {FILE, "grid.md", "grid.html"} | ({"accept-length.png", "speed.png"} if can_draw() else set())
    assert "conditions: command outrider" in result.output


def test_a_run_that_stopped_goes_on(tmp_path: Path, toy_folder: Path) -> None:
    """At least one visit each time, nothing twice, nothing anew when all is done."""
    out, seen = tmp_path / "grid", []
    for _ in range(3):
        assert run(out, toy_folder, "--settings", SETTINGS, "--minutes", "0.01").exit_code == 0
        seen.append([one.key for one in read(out).answers])
    assert run(out, toy_folder, "--settings", SETTINGS, "--minutes", "9").exit_code == 0
    grid = read(out)
    keys = [one.key for one in grid.answers]
    assert len(seen[0]) >= 3 and keys[: len(seen[2])] == seen[2]
    assert len(keys) == len(set(keys)) == grid.num_planned
    assert len(grid.runs) == 4
    assert run(out, toy_folder, "--settings", SETTINGS).exit_code == 0
    assert [one.key for one in read(out).answers] == keys


def test_an_interruption_keeps_what_is_done(tmp_path: Path, toy_folder: Path) -> None:
    """And reports it; the exit status is that of an interrupted program."""
    out, prompts = tmp_path / "grid", tmp_path / "prompts.yaml"
    lines = [f"  - {{name: p{i}, task: quote, temperature: 0, max_tokens: 9, text: ABCD}}" for i in range(200)]
    prompts.write_text("\n".join(["version: 1", "prompts:", *lines]), encoding="utf-8")
    command = [sys.executable, "-m", "outrider", "bench", "grid", "--out", str(out), "--model", str(toy_folder)]
    options = ["--prompts", str(prompts), "--temperatures", "0", "--max-tokens", "100", "--settings", SETTINGS]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while not (out / FILE).exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=60)
    assert process.returncode == 130, complaints.decode()
    grid = read(out)
    assert 3 <= len(grid.answers) < grid.num_planned
    assert f"Only {len(grid.answers)} of 600 answers are in" in (out / "grid.html").read_text("utf-8")


def test_another_grid_in_the_same_folder_is_refused(tmp_path: Path, toy_folder: Path) -> None:
    """With what became another; figures of two kinds would stand in one table."""
    out = tmp_path / "grid"
    assert run(out, toy_folder, "--settings", "ngram:3", "--minutes", "0.01").exit_code == 0
    refused = run(out, toy_folder, "--settings", "ngram:4", "--minutes", "0.01")
    assert isinstance(refused.exception, ConfigError)
    assert "begun with other settings" in str(refused.exception)
    (out / FILE).write_text("{}", encoding="utf-8")
    broken = run(out, toy_folder, "--settings", "ngram:3")
    assert isinstance(broken.exception, ConfigError)
    assert "cannot be gone on with" in str(broken.exception)


@pytest.mark.parametrize(
    ("option", "value"), [("--temperatures", "0,hot"), ("--temperatures", "3"), ("--settings", "prediction:3")]
)
def test_bad_options_are_named(tmp_path: Path, toy_folder: Path, option: str, value: str) -> None:
    """Before anything is measured; predictions are no part of a grid."""
    result = run(tmp_path / "grid", toy_folder, option, value)
    assert isinstance(result.exception, ConfigError)
    assert re.search(rf"{option} {value}", str(result.exception))
    assert not (tmp_path / "grid" / FILE).exists()


def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path: Path, toy_folder: Path) -> None:
    """With the option's name."""
    (tmp_path / "grid").write_text("a file", encoding="utf-8")
    result = run(tmp_path / "grid", toy_folder, "--settings", SETTINGS)
    assert isinstance(result.exception, ConfigError) and f"--out {tmp_path / 'grid'}: " in str(result.exception)
