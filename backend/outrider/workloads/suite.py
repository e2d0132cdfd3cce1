"""Suites: what is asked, how it arrives, how often; from YAML, from Spec-Bench's file or from HumanEval's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.core import TASKS, Task
from outrider.errors import ConfigError
from outrider.workloads.arrivals import Arrivals, Closed
from outrider.workloads.files import read_lines, read_text, read_yaml
from outrider.workloads.spec_bench import Question, load_questions, sample

#: Spec-Bench's categories as tasks of ours; others are chat.
_TASK_OF: dict[str, Task] = {
    "translation": "translate", "summarization": "summarise", "math_reasoning": "maths", "math": "maths",
    "rag": "rag", "coding": "code", "extraction": "extract", "writing": "creative", "roleplay": "creative",
}  # fmt: skip
_HOT = {"creative": 1.2}
_FILE_TOKENS = {"spec-bench": 128, "human-eval": 256}
#: All that a prompt has which is answered by itself.
_ALONE = frozenset({"name", "task", "temperature", "max_tokens", "text"})
#: All that a file says of how its prompts are asked together.
_OF_ROUNDS = frozenset({"arrivals", "rounds"})


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JobTool(_Part):
    """A tool that the model may call, and what it answers, whatever it is called with."""

    name: Annotated[str, Field(min_length=1)]
    description: str
    parameters: dict[str, Any]
    """JSON schema of its arguments."""
    answer: str

    @property
    def wire(self) -> dict[str, Any]:
        """The tool as OpenAI's clients send it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class Job(_Part):
    """One prompt as a request would carry it, or a conversation that begins with it."""

    name: str
    task: Task
    temperature: Annotated[float, Field(ge=0, le=2)]
    max_tokens: Annotated[int, Field(ge=1)]
    text: str
    then: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """What the user says after each answer that calls no tool."""
    prediction: str | None = None
    """OpenAI's `prediction` of the first answer."""
    response_format: dict[str, Any] | None = None
    tools: tuple[JobTool, ...] = ()
    tool_choice: Literal["auto", "required"] = "auto"
    """Of the first turn; afterwards the model decides."""
    max_turns: Annotated[int, Field(ge=1)] = 6

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a conversation."""
        return [{"role": "user", "content": self.text}]


class Take(_Part):
    """Prompts of a file that lies beside the suite's."""

    file: str
    tasks: list[Task] = []
    names: list[str] = []
    """Only these; without tasks and names all of the file are taken."""

    def chosen(self, folder: Path) -> list[Job]:
        """ConfigError when a name is not in the file, or nothing is left."""
        jobs = read_yaml(folder / self.file, _File).prompts
        if unknown := set(self.names) - {job.name for job in jobs}:
            raise ConfigError(f"{folder / self.file}: holds no prompt {min(unknown)!r}")
        tasks = self.tasks or TASKS
        found = [job for job in jobs if job.task in tasks and (not self.names or job.name in self.names)]
        if not found:
            raise ConfigError(f"{folder / self.file}: holds no prompt of {', '.join(self.tasks)}")
        return found


class _File(_Part):
    version: Annotated[int, Field(ge=1, le=1)]
    take: list[Take] = []
    prompts: list[Job] = []
    arrivals: Arrivals = Closed()
    rounds: Annotated[int, Field(ge=1)] = 2
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Of every answer at most, whatever its prompt asks for."""


class Suite(_Part):
    """Jobs and how they arrive."""

    name: str
    jobs: Annotated[list[Job], Field(min_length=1)]
    arrivals: Arrivals = Closed()
    rounds: int = 2
    """How often every arm answers, in turns with the others."""
    requests: int | None = None
    """Jobs of one round, the list again from its start as often as needed; None takes each once."""
    prompt_tokens: int | None = None
    """First prompts are made so long, about, by text before them."""
    is_exact_length: bool = False
    """Answers go on to their limit where the target knows `ignore_eos`."""
    seed: int = 0

    @property
    def num_requests(self) -> int:
        """Of one arm in one round."""
        return self.requests or len(self.jobs)

    @property
    def digest(self) -> str:
        """Of everything but the name and the number of rounds."""
        data = self.model_dump_json(exclude={"name": True, "rounds": True, "arrivals": {"file"}})
        trace = read_text(self.arrivals.file) if self.arrivals.kind == "trace" else ""
        return hashlib.sha256((data + trace).encode()).hexdigest()[:16]


def find_suite(name: str, folder: Path) -> Path:
    """A suite of `folder` by its name, or any file by its path. ConfigError lists the names."""
    shipped, path = folder / f"{name}.yaml", Path(name)
    if shipped.is_file():
        return shipped
    if path.is_file():
        return path
    names = ", ".join(sorted(found.stem for found in folder.glob("*.yaml")))
    raise ConfigError(f"no suite {name!r}, which is no file either; there are {names}")


def load_suite(path: Path) -> Suite:
    """ConfigError names the file, the line and what is wrong."""
    file = read_yaml(path, _File)
    return Suite(name=path.stem, jobs=_jobs(path, file), arrivals=file.arrivals, rounds=file.rounds)


def load_prompts(path: Path) -> list[Job]:
    """Of a suite, for what answers each prompt by itself. ConfigError also for one with more than that would heed."""
    file = read_yaml(path, _File)
    if more := sorted(file.model_fields_set & _OF_ROUNDS):
        raise ConfigError(f"{path}: {more[0]}: only `outrider bench run` heeds that")
    jobs = _jobs(path, file)
    for job in jobs:
        if more := sorted(job.model_fields_set - _ALONE):
            raise ConfigError(f"{path}: {job.name}: {more[0]}: only `outrider bench run` asks that")
    return jobs


def _jobs(path: Path, file: _File) -> list[Job]:
    taken = [job for take in file.take for job in take.chosen(path.parent)]
    return _checked(path, taken + file.prompts, file.max_tokens)


def _checked(path: Path, jobs: Sequence[Job], max_tokens: int | None) -> list[Job]:
    names = [job.name for job in jobs]
    if not jobs:
        raise ConfigError(f"{path}: neither prompts nor anything to take")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{path}: two prompts with the name {twice[0]!r}")
    if max_tokens is None:
        return list(jobs)
    return [job.model_copy(update={"max_tokens": min(job.max_tokens, max_tokens)}) for job in jobs]


class HumanEval(BaseModel):
    """One line of HumanEval's file (Chen et al., 2021); what checks solutions is not needed here."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    task_id: Annotated[str, Field(min_length=1)]
    prompt: Annotated[str, Field(min_length=1)]

    def job(self) -> Job:
        """The problem as a job of ours."""
        text = f"Complete this Python function and return all of it:\n\n```python\n{self.prompt.rstrip()}\n```"
        return Job(name=self.task_id, task="code", temperature=0, max_tokens=_FILE_TOKENS["human-eval"], text=text)


def load_jobs(path: Path, seed: int) -> list[Job]:
    """Of a prompt file in YAML, or of Spec-Bench or HumanEval in JSON lines, also gzipped: told by what is in it."""
    if path.suffix in (".yaml", ".yml"):
        return load_suite(path).jobs
    first = next((line for line in read_text(path).splitlines() if line.strip()), "")
    if '"task_id"' in first:
        return _checked(path, [one.job() for one in read_lines(path, HumanEval)], None)
    return [_from_question(question) for question in sample(load_questions(path), seed)]


def _from_question(question: Question) -> Job:
    task = _TASK_OF.get(question.category, "chat")
    return Job(
        name=f"{question.category}-{question.question_id}", task=task, temperature=_HOT.get(task, 0.0),
        max_tokens=_FILE_TOKENS["spec-bench"], text=question.turns[0], then=tuple(question.turns[1:]),
    )  # fmt: skip
