"""Suites: those that ship, prompts of other makers' files, and where a wrong file is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from outrider.config import packaged_data
from outrider.core import TASKS
from outrider.errors import ConfigError
from outrider.workloads.arrivals import Closed
from outrider.workloads.suite import find_suite, load_jobs, load_prompts, load_suite

SHIPPED = packaged_data("workloads")
PROMPT = "  - {name: one, task: chat, temperature: 0, max_tokens: 8, text: Say yes.}"


def write(folder: Path, *lines: str, name: str = "suite.yaml") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_ships_is_read(path: Path) -> None:
    """By its name; two readings are the same suite."""
    suite = load_suite(find_suite(path.stem, SHIPPED))
    assert suite.name == path.stem
    assert suite.digest == load_suite(path).digest


def test_smoke_has_something_of_every_task() -> None:
    """And of every kind of request, in few tokens."""
    jobs = load_suite(SHIPPED / "smoke.yaml").jobs
    assert {job.task for job in jobs} == set(TASKS)
    for field in ("then", "prediction", "response_format", "tools"):
        assert any(getattr(job, field) for job in jobs), field
    assert max(job.max_tokens for job in jobs) <= 24


def test_a_prompt_of_ours_has_one_name_and_one_text() -> None:
    """Files take prompts from one another instead of repeating them."""
    texts: dict[str, str] = {}
    for path in SHIPPED.glob("*.yaml"):
        for job in load_suite(path).jobs:
            assert texts.setdefault(job.text, job.name) == job.name


def test_a_digest_is_of_what_is_asked() -> None:
    """Not of how often, but of what and how it arrives."""
    suite = load_suite(SHIPPED / "maths.yaml")
    assert suite.model_copy(update={"rounds": 9, "name": "other"}).digest == suite.digest
    for change in ({"seed": 1}, {"requests": 3}, {"arrivals": Closed(concurrency=2)}, {"jobs": suite.jobs[:1]}):
        assert suite.model_copy(update=change).digest != suite.digest


def test_what_answers_each_prompt_by_itself_refuses_more() -> None:
    """A file that takes its prompts from others is read; a prompt with a tool is named."""
    assert load_prompts(SHIPPED / "code.yaml") == load_suite(SHIPPED / "code.yaml").jobs
    with pytest.raises(ConfigError, match=r"tools.yaml: tool-weather: tool_choice: only `outrider bench run`"):
        load_prompts(SHIPPED / "tools.yaml")


@pytest.mark.parametrize("line", ["arrivals: {kind: closed}", "rounds: 2"])
def test_what_answers_each_prompt_by_itself_heeds_no_rounds(tmp_path: Path, line: str) -> None:
    """Nor arrivals, so that a file with either is refused, though it says what would be taken anyway."""
    with pytest.raises(ConfigError, match=rf"suite.yaml: {line.partition(':')[0]}: only `outrider bench run`"):
        load_prompts(write(tmp_path, "version: 1", line, "prompts:", PROMPT))


def test_arrivals_rounds_and_limits_are_read(tmp_path: Path) -> None:
    """A limit holds for all prompts."""
    path = write(
        tmp_path,
        "version: 1",
        "rounds: 3",
        "max_tokens: 4",
        "arrivals: {kind: poisson, per_s: 2.5}",
        "prompts:",
        PROMPT,
    )
    suite = load_suite(path)
    assert (suite.rounds, suite.jobs[0].max_tokens, str(suite.arrivals)) == (3, 4, "Poisson, 2.5/s")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["version: 1", "prompts:", PROMPT, PROMPT], "suite.yaml: two prompts with the name 'one'"),
        (["version: 1"], "suite.yaml: neither prompts nor anything to take"),
        (["version: 2", "prompts:", PROMPT], "suite.yaml:1: version: "),
        (["version: 1", "prompts:", PROMPT, PROMPT.replace("chat", "talk")], "suite.yaml:4: prompts.1.task: "),
        (["version: 1", "", "prompts:", "  - name: one", "    task: chat"], "suite.yaml:4: prompts.0.temperature: "),
        (["version: 1", "arrivals:", "  kind: closed", "  concurrency: 0"], "suite.yaml:4: arrivals.closed.concurr"),
        (["version: 1", "arrivals: {kind: waves}"], "suite.yaml:2: arrivals: "),
        (["version: 1", "prompts: ["], "suite.yaml:3:"),
        (["version: 1", "take: [{file: none.yaml}]"], "none.yaml: cannot be read"),
        (["version: 1", "take: [{file: other.yaml, names: [two]}]"], "other.yaml: holds no prompt 'two'"),
        (["version: 1", "take: [{file: other.yaml, tasks: [maths]}]"], "other.yaml: holds no prompt of maths"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, lines: list[str], problem: str) -> None:
    """And with the key that is wrong."""
    write(tmp_path, "version: 1", "prompts:", PROMPT, name="other.yaml")
    with pytest.raises(ConfigError) as raised:
        load_suite(write(tmp_path, *lines))
    assert problem in raised.value.message


def test_a_suite_that_is_nowhere_is_an_error_with_the_names(tmp_path: Path) -> None:
    """A file is found by its path."""
    assert find_suite(str(write(tmp_path, "version: 1")), SHIPPED) == tmp_path / "suite.yaml"
    with pytest.raises(ConfigError, match=r"no suite 'smok'.*smoke"):
        find_suite("smok", SHIPPED)


def test_spec_bench_is_read_by_path(tmp_path: Path) -> None:
    """Its categories become tasks, its second turns are said after the first answer."""
    lines = [
        json.dumps({"question_id": number, "category": category, "turns": ["Do it.", "Again."][: number % 2 + 1]})
        for number, category in enumerate(("writing", "translation", "qa"), 80)
    ]
    jobs = {job.task: job for job in load_jobs(write(tmp_path, *lines, name="questions.jsonl"), seed=0)}
    assert {task: job.temperature for task, job in jobs.items()} == {"creative": 1.2, "translate": 0, "chat": 0}
    assert (jobs["translate"].name, jobs["translate"].text, jobs["translate"].then) == (
        "translation-81", "Do it.", ("Again.",),
    )  # fmt: skip


def test_human_eval_is_read_by_path(tmp_path: Path) -> None:
    """Gzipped, as it is distributed; a wrong line is named."""
    line = {"task_id": "HumanEval/0", "prompt": "def f():\n    ...\n", "canonical_solution": "", "test": ""}
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(line).encode()))
    (job,) = load_jobs(path, seed=0)
    assert (job.name, job.task, job.temperature) == ("HumanEval/0", "code", 0)
    assert "```python\ndef f():\n    ...\n```" in job.text
    with pytest.raises(ConfigError, match=r"eval.jsonl:2: prompt: "):
        load_jobs(write(tmp_path, json.dumps(line), '{"task_id": "1"}', name="eval.jsonl"), seed=0)


def test_our_own_prompt_files_are_read_by_path(tmp_path: Path) -> None:
    """As a suite's prompts."""
    assert [job.name for job in load_jobs(write(tmp_path, "version: 1", "prompts:", PROMPT), seed=0)] == ["one"]
