"""Spec-Bench's file: what is read, what is refused and where, and which questions are taken first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.workloads.spec_bench import Question, load_questions, sample

GOOD = {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Shorten it."], "reference": ["none"]}


def write(folder: Path, *lines: str) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_questions_are_read_and_empty_lines_passed_over(tmp_path: Path) -> None:
    """Keys that are not needed do no harm."""
    assert load_questions(write(tmp_path, json.dumps(GOOD), "", json.dumps(GOOD | {"question_id": 82}))) == [
        Question(question_id=number, category="writing", turns=["Compose a post.", "Shorten it."])
        for number in (81, 82)
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{not json", "JSON"),
        (json.dumps(GOOD | {"turns": []}), "turns: "),
        (json.dumps(GOOD | {"turns": [""]}), "turns.0: "),
        (json.dumps(GOOD | {"category": 3}), "category: "),
        (json.dumps({"category": "qa", "turns": ["Who?"]}), "question_id: "),
        (json.dumps([GOOD]), "object"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, problem: str) -> None:
    """The message begins with file and line, and says which key is wrong."""
    path = write(tmp_path, json.dumps(GOOD), "", line)
    with pytest.raises(ConfigError) as caught:
        load_questions(path)
    assert caught.value.message.startswith(f"{path}:3: ")
    assert problem in caught.value.message


def test_a_file_that_is_missing_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    """Neither is an empty benchmark."""
    for path in (tmp_path / "none.jsonl", write(tmp_path, "")):
        with pytest.raises(ConfigError, match=str(path)):
            load_questions(path)


def test_every_beginning_of_a_sample_is_even(tmp_path: Path) -> None:
    """One question of each category, then a second; the seed picks which, and nothing is lost."""
    questions = [Question(question_id=i, category="abc"[i % 3], turns=["x"]) for i in range(24)]
    first, other = sample(questions, 1), sample(questions, 2)
    for start in range(0, 24, 3):
        assert [question.category for question in first[start : start + 3]] == ["a", "b", "c"]
    assert sorted(q.question_id for q in first) == list(range(24))
    assert first == sample(questions, 1)
    assert first != other
