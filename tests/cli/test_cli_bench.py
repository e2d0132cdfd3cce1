"""`outrider bench engine` from the command line to its tables and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_prompts import PROMPTS
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.errors import ConfigError


def run(folder: Path, model: Path, *args: str) -> tuple[int, str, dict[str, object]]:
    (folder / "prompts.yaml").write_text(PROMPTS, encoding="utf-8")
    written = folder / "figures.json"
    options = ["--model", str(model), "--prompts", str(folder / "prompts.yaml"), "--json", str(written)]
    result = CliRunner().invoke(app, ["bench", "engine", *options, *args], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, json.loads(written.read_text(encoding="utf-8"))


def test_the_suite_of_drafters_prints_every_table_and_its_conditions(tmp_path: Path, toy_folder: Path) -> None:
    """Own prompts and questions; what is left out is noted; the file holds the same rows and every answer."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question_id": 1, "category": "qa", "turns": ["AB?"]}\n', encoding="utf-8")
    status, text, data = run(tmp_path, toy_folder, "--minutes", "20", "--spec-bench", str(questions))
    assert status == 0
    tables = data["tables"]
    assert isinstance(tables, dict)
    assert len(tables) == 8
    for title in tables:
        assert title in text
    assert "llama.cpp was left out" in text
    assert "conditions: command outrider" in text
    rows = {(row["drafter"], row["k"]): row for row in tables["drafters by k, against off on the same prompts"]}
    assert {drafter for drafter, _ in rows} == {"ngram", "suffix", "layer_skip", "draft_model"}
    assert all(row["same text"] in ("2 of 2", "4 of 4") for row in rows.values())
    conditions, prompts = data["conditions"], data["prompts"]
    assert isinstance(conditions, dict)
    assert isinstance(prompts, list)
    assert conditions["visits"] == "2 of 2"
    assert [prompt["name"] for prompt in prompts] == ["quote-a", "spec/qa-1"]


def test_the_suite_by_task_compares_the_policy_with_off(tmp_path: Path, toy_folder: Path) -> None:
    """One row per task, hot ones too, in rounds."""
    status, text, data = run(tmp_path, toy_folder, "--suite", "tasks")
    assert status == 0
    assert "policy/off" in text
    ((_, rows),) = data["tables"].items()  # type: ignore[attr-defined]
    assert [(row["task"], row["same text"]) for row in rows] == [
        ("quote", "3 of 3"), ("creative", "3 of 3"), ("all", "6 of 6"),
    ]  # fmt: skip
    assert rows[0]["off/hf"] is not None
    assert "cost table none" in text and "learning none" in text


@pytest.mark.parametrize("option", ["--spec-bench", "--seed", "--draft-model"])
def test_an_option_of_the_other_suite_is_refused_by_name(tmp_path: Path, toy_folder: Path, option: str) -> None:
    """It would change nothing."""
    arguments = ["bench", "engine", "--suite", "tasks", "--model", str(toy_folder), option, "1", "--minutes", "0.1"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)
    assert option in str(result.exception)


def test_a_bad_line_of_questions_stops_the_start(tmp_path: Path, toy_folder: Path) -> None:
    """Before any model is loaded, with file and line."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text("{}\n", encoding="utf-8")
    options = ["--model", str(toy_folder), "--spec-bench", str(questions)]
    result = CliRunner().invoke(app, ["bench", "engine", *options])
    assert result.exit_code != 0
    assert f"{questions}:1: " in str(result.exception)
