"""Which case is answered by which arms in which order, so that any beginning of the order is a fair run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from outrider.cli.bench.samples import SETTING_OFF, Case, Setting
from outrider.workloads.spec_bench import Question, sample
from outrider.workloads.suite import Job

#: Draft tokens per step that are tried, by drafter.
KS = {
    "ngram": (3, 6, 10),
    "suffix": (3, 6, 10),
    "prediction": (6, 9, 16),
    "layer_skip": (2, 4),
    "draft_model": (1, 2, 4),
}
#: Drafters that cost next to nothing and answer every case, and those that run a model.
LIGHT, SLOW = ("ngram", "suffix"), ("layer_skip", "draft_model")
#: First cases that slow arms answer, for each minute of the run.
SLOW_CASES_PER_MINUTE = 0.3
#: Groups whose answers are predicted, as an editor does, and therefore longer.
PREDICTED = ("edit",)
#: Groups that stand for what Spec-Bench lacks; with its questions at hand no others of ours are needed.
OWN = ("quote", "summarise", "edit")
#: Tokens of an answer, and of a predicted one.
TOKENS, PREDICTED_TOKENS = 64, 128
POLICY = Setting("policy")
TASK_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Visit:
    """One case and the arms that answer it, one after the other."""

    case: Case
    settings: tuple[Setting, ...]
    round: int = 0


def settings_of(drafters: Sequence[str]) -> list[Setting]:
    """Every k at which these drafters are measured."""
    return [Setting(drafter, k) for drafter in drafters for k in KS[drafter]]


def greedy_cases(prompts: Sequence[Job], questions: Sequence[Question], seed: int) -> list[Case]:
    """Our greedy prompts and the first turns of the questions, one of each group, then a second, ..."""
    groups: dict[str, list[Case]] = {}
    for prompt in prompts:
        if prompt.temperature == 0 and (prompt.task in OWN or not questions):
            tokens = PREDICTED_TOKENS if prompt.task in PREDICTED else TOKENS
            case = Case(prompt.name, prompt.task, prompt.text, 0.0, min(tokens, prompt.max_tokens))
            groups.setdefault(prompt.task, []).append(case)
    for question in sample(questions, seed):
        group = f"spec/{question.category}"
        case = Case(f"{group}-{question.question_id}", group, question.turns[0], 0.0, TOKENS)
        groups.setdefault(group, []).append(case)
    return [case for case in chain.from_iterable(zip_longest(*groups.values())) if case is not None]


@dataclass(frozen=True, slots=True)
class Tiers:
    """Settings by what an answer of theirs costs."""

    light: Sequence[Setting]
    """They answer every case."""
    heavy: Sequence[Setting] = ()
    """The first case of each group."""
    slow: Sequence[Setting] = ()
    """The first cases of all."""

    @property
    def all(self) -> list[Setting]:
        """Of every tier, the light ones first."""
        return [*self.light, *self.heavy, *self.slow]


def drafter_visits(cases: Sequence[Case], tiers: Tiers, minutes: float) -> list[Visit]:
    """Off before and after everything else; the rest begins with another arm each time."""
    num_slow = max(1, round(SLOW_CASES_PER_MINUTE * minutes))
    visits, seen = [], set()
    for i, case in enumerate(cases):
        settings = list(tiers.light)
        if case.group in PREDICTED:
            settings += settings_of(["prediction"])
        if case.group not in seen:
            settings += tiers.heavy
        if i < num_slow:
            settings += tiers.slow
        seen.add(case.group)
        first = i % len(settings)
        visits.append(Visit(case, (SETTING_OFF, *settings[first:], *settings[:first], SETTING_OFF)))
    return visits


def task_visits(prompts: Sequence[Job], first: Sequence[Setting] = ()) -> list[Visit]:
    """All prompts at their own temperature and length, in rounds; arms of `first` answer in the first round only."""
    visits = []
    for number in range(TASK_ROUNDS):
        for i, prompt in enumerate(prompts):
            case = Case(prompt.name, prompt.task, prompt.text, prompt.temperature, prompt.max_tokens)
            ours = (SETTING_OFF, POLICY) if (i + number) % 2 == 0 else (POLICY, SETTING_OFF)
            visits.append(Visit(case, ours if number else (*ours, *first), number))
    return visits
