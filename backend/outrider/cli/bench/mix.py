"""Mixed traffic: workloads at several batch sizes, and which requests each setting is given in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from outrider.cli.bench.samples import SETTING_OFF, Case, Setting
from outrider.cli.bench.visits import POLICY, TOKENS
from outrider.core import MAX_K
from outrider.errors import ConfigError
from outrider.workloads.spec_bench import Question, sample
from outrider.workloads.suite import Job

#: Fixed settings that need no training, and drafters that are held against the policy too where the engine has them,
#: with this k.
FIXED = "off,ngram:2,ngram:4,ngram:8,suffix:4,suffix:8"
_TRAINED, _TRAINED_K = ("hybrid", "eagle2", "eagle3", "medusa"), 4
#: Categories of Spec-Bench that stand for a workload, which has none of our prompts then; the others keep ours.
CATEGORIES = {
    "code": ("coding",),
    "chat": ("humanities", "stem", "qa"),
    "creative": ("writing", "roleplay"),
}
#: Temperature of these questions, by workload; of chat every second one is greedy.
_HEAT = {"code": (0.0,), "chat": (0.0, 0.7), "creative": (1.2,)}
#: Longer questions would make it a measurement of prompt reading.
_MAX_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload with so many requests at once."""

    workload: str
    size: int
    is_hopeless: bool = False
    """No draft is ever accepted here, whatever the drafter."""

    def __str__(self) -> str:
        return f"{self.workload}, batch {self.size}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One cell in one round, which all settings answer one after the other."""

    cell: Cell
    round: int
    settings: tuple[Setting, ...]
    cases: tuple[Case, ...]
    """Its requests, over and over."""


@dataclass(frozen=True, slots=True)
class Mix:
    """What is measured."""

    cases: dict[str, list[Case]]
    """By workload."""
    sizes: Sequence[int]
    fixed: Sequence[Setting]
    max_running: int
    """Requests that the engine runs at once; ConfigError when a size is above it."""
    trims_fixed: bool = False
    """Fixed settings verify only the drafts that are expected to pay, too, and not all that they are set to."""

    def __post_init__(self) -> None:
        if max(self.sizes) > self.max_running:
            raise ConfigError(f"--batch {max(self.sizes)}: the engine runs {self.max_running} requests at once")

    def turns(self, size: int) -> Iterator[Turn]:
        """Rounds at one size, without an end; each begins with another setting, and where fewer than all prompts are
        needed, with others."""
        for number in count():
            for workload, cases in self.cases.items():
                first = number * max(size, 2) % len(cases)
                order = (*cases[first:], *cases[:first])
                yield Turn(Cell(workload, size), number, _turned((*self.fixed, POLICY), number), order)
                if workload == self.hopeless:
                    pair = _turned((SETTING_OFF, POLICY), number)
                    yield Turn(Cell(workload, size, is_hopeless=True), number, pair, order)

    @property
    def hopeless(self) -> str:
        """The workload in which useless drafters are tried as well: code, of which the policy expects much."""
        return "code" if "code" in self.cases else next(iter(self.cases))

    @property
    def num_cells(self) -> int:
        """Of one round."""
        return len(self.sizes) * (len(self.cases) + 1)


def _turned(settings: tuple[Setting, ...], number: int) -> tuple[Setting, ...]:
    # A step by 3 of 7 or 10: neighbours change their order too, not only who comes first.
    first = 3 * number % len(settings)
    return (*settings[first:], *settings[:first])


def limits(size: int, max_tokens: int) -> Iterator[int]:
    """Most tokens of each request: the first are staggered, so that later ones start one by one, as traffic does."""
    yield from (-(-max_tokens * (i + 1) // size) for i in range(size))
    while True:
        yield max_tokens


def num_measured(size: int, max_tokens: int) -> int:
    """Tokens after which a measurement ends: as many as the staggered requests have, and at least those of 1.5."""
    return max(sum(-(-max_tokens * (i + 1) // size) for i in range(size)), 3 * max_tokens // 2)


def mixed_cases(prompts: Sequence[Job], questions: Sequence[Question]) -> dict[str, list[Case]]:
    """Prompts by workload, which is their task; questions replace those of the workloads that they stand for."""
    found: dict[str, list[Case]] = {}
    for prompt in prompts:
        case = Case(prompt.name, prompt.task, prompt.text, prompt.temperature, prompt.max_tokens)
        found.setdefault(prompt.task, []).append(case)
    chosen = sample([q for q in questions if len(q.turns[0]) <= _MAX_CHARS], 0)
    for workload, categories in CATEGORIES.items():
        own = [question for question in chosen if question.category in categories]
        heats = _HEAT[workload]
        if own:
            found[workload] = [
                Case(f"{q.category}-{q.question_id}", workload, q.turns[0], heats[i % len(heats)], TOKENS)
                for i, q in enumerate(own)
            ]
    return found


def usual_fixed(drafters: Collection[str]) -> str:
    """The settings that an engine with these drafters is asked for, unless others are."""
    return ",".join([FIXED, *(f"{name}:{_TRAINED_K}" for name in _TRAINED if name in drafters)])


def parse_fixed(text: str, drafters: Sequence[str], option: str = "--fixed") -> list[Setting]:
    """`off,ngram:4`; ConfigError names what no engine here can run. Off is always among them."""
    found = [SETTING_OFF]
    for part in filter(None, (part.strip() for part in text.split(","))):
        arm, _, k = part.partition(":")
        if part == str(SETTING_OFF):
            continue
        if arm not in drafters:
            raise ConfigError(f"{option} {part}: no such drafter here; there are {', '.join(drafters)}")
        if not k.isdecimal() or not 1 <= int(k) <= MAX_K:
            raise ConfigError(f"{option} {part}: wanted {arm}:K with K from 1 to {MAX_K}")
        found.append(Setting(arm, int(k)))
    return list(dict.fromkeys(found))


def parse_sizes(text: str) -> list[int]:
    """`1,4,12`; ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--batch {text}: wanted numbers above 0, with commas between")
    return sorted({int(part) for part in parts})
