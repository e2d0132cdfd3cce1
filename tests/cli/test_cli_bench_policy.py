"""`outrider bench policy` from the command line to its tables and its file."""

from __future__ import annotations

import json
from pathlib import Path

from toy_prompts import PROMPTS
from typer.testing import CliRunner

from outrider.cli.main import app


def test_one_command_prints_the_cells_the_aims_and_the_conditions(tmp_path: Path, toy_folder: Path) -> None:
    """And writes the same rows, and every request, to its file."""
    prompts, written = tmp_path / "prompts.yaml", tmp_path / "figures.json"
    prompts.write_text(PROMPTS, encoding="utf-8")
    options = ["--model", str(toy_folder), "--prompts", str(prompts), "--json", str(written)]
    options += ["--minutes", "0.03", "--batch", "1,3", "--fixed", "ngram:2"]
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
    wanted = {(name, size) for name in ("quote", "creative", "quote, useless drafts") for size in (1, 3)}
    assert {("quote", 1), ("quote", 3)} <= {(row["workload"], row["batch"]) for row in cells} <= wanted
    assert {row["result"] for row in aims[:3]} <= ({"met", "MISSED"} if len(cells) == 6 else {"undecided", "MISSED"})
    assert data["conditions"]["cells"] == f"{len(cells)} of 6"
    assert data["conditions"]["cost table"].startswith("none") and data["conditions"]["learning"].startswith("from")
    assert ("cells were measured" in result.stdout) == (len(cells) < 6)
    assert {stretch["arm"] for stretch in data["stretches"]} == {"off", "ngram", "policy"}


def test_a_setting_that_no_engine_runs_stops_the_start(tmp_path: Path, toy_folder: Path) -> None:
    """Before anything is measured."""
    result = CliRunner().invoke(app, ["bench", "policy", "--model", str(toy_folder), "--fixed", "eagle3:4"])
    assert result.exit_code != 0
    assert "--fixed eagle3:4" in str(result.exception)
