"""What a grid has measured, in a file that a later run goes on with; and its cells: task, temperature, drafter, k."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.cli.bench.samples import SETTING_OFF, Case, Sample, Setting
from outrider.errors import ConfigError
from outrider.workloads.files import write_whole

FILE = "grid.json"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(_Part):
    """One answer of one setting."""

    task: str
    prompt: str
    temperature: float
    drafter: str
    k: int
    round: int
    token_ids: list[int]
    tokens_per_s: float | None
    """After its first token; None when it has no other."""
    draft_s: float
    """Within the drafter."""
    histogram: list[int] = []
    """Verify steps by accepted drafts; empty of off, as the two counts are 0."""
    num_proposed: int = 0
    num_accepted: int = 0

    @property
    def setting(self) -> Setting:
        """The drafter and k that wrote it."""
        return Setting(self.drafter, self.k)

    @property
    def key(self) -> tuple[str, float, int, Setting]:
        """What is not measured twice."""
        return self.prompt, self.temperature, self.round, self.setting


class Scope(_Part):
    """What is to be measured; a run goes on only with what was begun within the same."""

    model: str
    prompts: str
    """Digest of all prompts."""
    temperatures: list[float]
    settings: list[str]
    max_tokens: int
    drafters: dict[str, str]
    """Digests of weights and layers, by drafter that has some."""


class Grid(BaseModel):
    """One grid."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[2] = 2
    scope: Scope
    runs: list[dict[str, Any]] = []
    """Conditions of each time that it was begun or gone on with."""
    num_planned: int = 0
    answers: Annotated[list[Answer], Field(repr=False)] = []


def answer_of(sample: Sample) -> Answer:
    """What is kept of an answer, without its text."""
    case, stats = sample.case, sample.stats
    return Answer(
        task=case.group, prompt=case.name, temperature=case.temperature, drafter=sample.setting.arm,
        k=sample.setting.k, round=sample.round, token_ids=list(sample.token_ids), tokens_per_s=sample.speed(),
        draft_s=sample.draft_s, histogram=[] if stats is None else list(stats.histogram),
        num_proposed=0 if stats is None else stats.num_proposed or 0,
        num_accepted=0 if stats is None else stats.num_accepted,
    )  # fmt: skip


def read_grid(folder: Path, scope: Scope) -> Grid:
    """What was measured before within the same scope, or nothing; ConfigError names what became another."""
    file = folder / FILE
    if not file.exists():
        return Grid(scope=scope)
    try:
        grid = Grid.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{file}: cannot be gone on with: {error}") from error
    other = [name for name in Scope.model_fields if getattr(grid.scope, name) != getattr(scope, name)]
    if other:
        raise ConfigError(f"{file}: was begun with other {', '.join(other)}; take another --out or the same options")
    return grid


def write_grid(grid: Grid, folder: Path) -> None:
    """Whole or not at all."""
    write_whole(folder / FILE, grid)


def visits(cases: Sequence[Case], temperatures: Sequence[float], rounds: int) -> Iterator[tuple[int, Case]]:
    """Round and case; any beginning spreads over tasks and temperatures. Greedy answers do not change, so that the
    first round is their only one."""
    tasks = list(dict.fromkeys(case.group for case in cases))
    by_task = {task: [case for case in cases if case.group == task] for task in tasks}
    for number in range(rounds):
        for i in range(max(map(len, by_task.values()))):
            for turn in range(len(temperatures)):
                for at, task in enumerate(tasks):
                    temperature = temperatures[(turn + at) % len(temperatures)]
                    if i < len(by_task[task]) and not (number and temperature == 0):
                        case = by_task[task][i]
                        yield number, Case(case.name, task, case.text, temperature, case.max_tokens)


class Cells:
    """The figures of a grid's cells; `None` instead of a number where nothing was measured."""

    def __init__(self, grid: Grid) -> None:
        self._answers: dict[tuple[str, float, Setting], list[Answer]] = {}
        for one in grid.answers:
            self._answers.setdefault((one.task, one.temperature, one.setting), []).append(one)
        self.rows = list(dict.fromkeys((task, heat) for task, heat, _ in self._answers))
        order = list(dict.fromkeys(task for task, _ in self.rows))
        self.rows.sort(key=lambda row: (order.index(row[0]), row[1]))
        found = {setting for _, _, setting in self._answers}
        self.settings = [s for s in map(parse, grid.scope.settings) if s in found and s != SETTING_OFF]

    def of(self, row: tuple[str, float], setting: Setting) -> list[Answer]:
        """Answers of a row (task, temperature) under a setting; none when it was not measured."""
        return self._answers.get((*row, setting), [])

    def accept_length(self, row: tuple[str, float], setting: Setting) -> float | None:
        """Tokens per verify step over all answers."""
        num_steps = self.num_steps(row, setting)
        return 1 + sum(a.num_accepted for a in self.of(row, setting)) / num_steps if num_steps else None

    def num_steps(self, row: tuple[str, float], setting: Setting) -> int:
        """Steps that verified drafts, over the answers of the cell."""
        return sum(sum(a.histogram) for a in self.of(row, setting))

    def accept_rate(self, row: tuple[str, float], setting: Setting) -> float | None:
        """Accepted drafts over proposed ones."""
        num_proposed = sum(a.num_proposed for a in self.of(row, setting))
        return sum(a.num_accepted for a in self.of(row, setting)) / num_proposed if num_proposed else None

    def speed(self, row: tuple[str, float], setting: Setting) -> float | None:
        """Tokens/s over those of off to the same prompt in the same round: the median."""
        pairs = self._pairs(row, setting)
        found = [a.tokens_per_s / b.tokens_per_s for a, b in pairs if a.tokens_per_s and b.tokens_per_s]
        return median(found) if found else None

    def same_text(self, row: tuple[str, float], setting: Setting) -> str | None:
        """Of how many greedy answers off wrote the same; sampled ones differ, since each draws its own."""
        pairs = self._pairs(row, setting) if row[1] == 0 else []
        return f"{sum(a.token_ids == b.token_ids for a, b in pairs)} of {len(pairs)}" if pairs else None

    def table(self, figure: Callable[[tuple[str, float], Setting], float | None]) -> dict[str, list[float | None]]:
        """By row and setting."""
        return {f"{task}, T {heat:g}": [figure((task, heat), s) for s in self.settings] for task, heat in self.rows}

    def _pairs(self, row: tuple[str, float], setting: Setting) -> list[tuple[Answer, Answer]]:
        off = {(a.prompt, a.round): a for a in self.of(row, SETTING_OFF)}
        return [(a, off[a.prompt, a.round]) for a in self.of(row, setting) if (a.prompt, a.round) in off]


def parse(text: str) -> Setting:
    """Of what `str` of a setting gives."""
    arm, _, k = text.partition(" k=")
    return Setting(arm, int(k or 0))
