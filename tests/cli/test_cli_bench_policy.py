"""`outrider bench policy` from the command line to its tables and its file."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

from toy_prompts import PROMPTS
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.errors import ConfigError


def test_one_command_prints_the_cells_the_aims_and_the_conditions(tmp_path: Path, toy_folder: Path) -> None:
    """And writes the same rows, and every request, to its file."""
    prompts, written, page = tmp_path / "prompts.yaml", tmp_path / "figures.json", tmp_path / "page"
    prompts.write_text(PROMPTS, encoding="utf-8")
    options = ["--model", str(toy_folder), "--prompts", str(prompts), "--json", str(written)]
    options += ["--out", str(page), "--minutes", "0.03", "--batch", "1,3", "--fixed", "ngram:2"]
    result = CliRunner().invoke(app, ["bench", "policy", *options])
    assert result.exit_code == 0, result.output
    for text in (
        "policy / best",
        "policy / off",
        "useless drafts",
        "of each cell",
        "greedy texts",
        "conditions: command",
    ):
        assert text in result.stdout
    data = json.loads(written.read_text(encoding="utf-8"))
    cells, aims = data["tables"].values()
    html, markdown = (unescape((page / name).read_text("utf-8")) for name in ("policy.html", "policy.md"))
    assert html.count("<svg") == 2 and all(aim["aim"] in html for aim in aims)
    assert f"| {cells[0]['workload']} | {cells[0]['batch']} |" in markdown and "- command: outrider" in markdown
    wanted = {(name, size) for name in ("quote", "creative", "quote, useless drafts") for size in (1, 3)}
    assert {("quote", 1), ("quote", 3)} <= {(row["workload"], row["batch"]) for row in cells} <= wanted
    assert {row["result"] for row in aims[:3]} <= ({"met", "MISSED"} if len(cells) == 6 else {"undecided", "MISSED"})
    assert data["conditions"]["cells"] == f"{len(cells)} of 6"
    assert data["conditions"]["cost table"].startswith("none") and data["conditions"]["learning"].startswith("from")
    for shown in (result.stdout, html, markdown):
        assert ("cells were measured, so that no aim is met" in shown) == (len(cells) < 6)
    assert {one["arm"] for one in data["traffic"]} == {"off", "ngram", "policy"}


def test_a_setting_that_no_engine_runs_stops_the_start(tmp_path: Path, toy_folder: Path) -> None:
    """Before anything is measured."""
    result = CliRunner().invoke(app, ["bench", "policy", "--model", str(toy_folder), "--fixed", "eagle3:4"])
    assert result.exit_code != 0
    assert "--fixed eagle3:4" in str(result.exception)


def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path: Path, toy_folder: Path) -> None:
    """Before anything is measured, which would be lost."""
    (tmp_path / "page").write_text("a file", encoding="utf-8")
    options = ["--model", str(toy_folder), "--fixed", "ngram:2", "--minutes", "0.01", "--out", str(tmp_path / "page")]
    result = CliRunner().invoke(app, ["bench", "policy", *options])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(f"--out {tmp_path / 'page'}: ") and "aims" not in result.stdout
