"""What is measured: a case to answer, and what one arm did with it. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, NamedTuple

from outrider.core import OFF, SpecStats


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt to answer."""

    name: str
    group: str
    """What its figures are summed up with: a task, or a category of Spec-Bench."""
    text: str
    temperature: float = 0.0
    max_tokens: int = 64

    @property
    def messages(self) -> list[dict[str, str]]:
        """The case as a conversation."""
        return [{"role": "user", "content": self.text}]


class Setting(NamedTuple):
    """An arm and its number of draft tokens; k is 0 where there are none or where the arm's library decides."""

    arm: str
    k: int = 0

    def __str__(self) -> str:
        return f"{self.arm} k={self.k}" if self.k else self.arm


SETTING_OFF = Setting(OFF)


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one arm, and when its tokens came."""

    setting: Setting
    case: Case
    round: int
    token_ids: tuple[int, ...]
    counts: tuple[int, ...]
    """Tokens so far, at each moment at which some came; ascending."""
    times_s: tuple[float, ...]
    """Those moments, from the start of the request."""
    drafter: str = OFF
    k: int = 0
    stats: SpecStats | None = None
    draft_s: float = 0.0
    """Seconds inside the drafter's proposals."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer."""
        return len(self.token_ids)

    def decode(self, num_tokens: int | None = None) -> tuple[int, float] | None:
        """Tokens after the first moment and the seconds they took, of the whole answer or up to `num_tokens`.

        None when no later moment lies within.
        """
        limit = self.num_tokens if num_tokens is None else num_tokens
        last = sum(count <= limit for count in self.counts) - 1
        if last < 1:
            return None
        return self.counts[last] - self.counts[0], self.times_s[last] - self.times_s[0]

    def speed(self, num_tokens: int | None = None) -> float | None:
        """Tokens per second of `decode`."""
        decoded = self.decode(num_tokens)
        return None if decoded is None else decoded[0] / decoded[1]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the speed in tokens per second."""
        data = asdict(self) | self.setting._asdict() | {"case": self.case.name, "tokens_per_s": self.speed()}
        del data["setting"]
        return data


@dataclass(frozen=True, slots=True)
class BatchSample:
    """Tokens per second of all requests of a batch together."""

    setting: Setting
    size: int
    tokens_per_s: float


def ratio(sample: Sample, other: Sample) -> float | None:
    """Speed of one answer over that of another to the same case, over as many tokens as both have."""
    shared = min(sample.num_tokens, other.num_tokens)
    speeds = sample.speed(shared), other.speed(shared)
    return None if speeds[0] is None or speeds[1] is None else speeds[0] / speeds[1]


def accept_length(samples: Sequence[Sample]) -> float | None:
    """Tokens per verify step of all answers together; None when there was no such step."""
    stats = [s.stats for s in samples if s.stats is not None]
    num_steps = sum(s.num_verify_steps for s in stats)
    return 1 + sum(s.num_accepted for s in stats) / num_steps if num_steps else None


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """None when one is the beginning of the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


class Samples:
    """All answers of a run, and medians over them."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.all = list(samples)
        self._by_case: dict[Case, dict[Setting, list[Sample]]] = {}
        for sample in self.all:
            self._by_case.setdefault(sample.case, {}).setdefault(sample.setting, []).append(sample)

    def __bool__(self) -> bool:
        return bool(self.all)

    @property
    def cases(self) -> list[Case]:
        """In the order in which they were first answered."""
        return list(self._by_case)

    @property
    def groups(self) -> list[str]:
        """Groups of the cases, in the same order."""
        return list(dict.fromkeys(case.group for case in self._by_case))

    @property
    def settings(self) -> list[Setting]:
        """Settings that answered anything, in the same order."""
        return list(dict.fromkeys(sample.setting for sample in self.all))

    def of(self, setting: Setting) -> list[Sample]:
        """Answers of one setting."""
        return [sample for sample in self.all if sample.setting == setting]

    def in_groups(self, groups: Sequence[str]) -> Samples:
        """Those of cases in the groups."""
        return Samples([sample for sample in self.all if sample.case.group in groups])

    def beside(self, setting: Setting, other: Setting) -> list[tuple[Sample, Sample]]:
        """Each answer of `setting` with every one of `other` to the same case in the same round."""
        return [
            (sample, against)
            for answers in self._by_case.values()
            for sample in answers.get(setting, ())
            for against in answers.get(other, ())
            if sample.round == against.round
        ]

    def speed(self, setting: Setting) -> float | None:
        """Median tokens per second over answers."""
        return _median([sample.speed() for sample in self.of(setting)])

    def ratio(self, setting: Setting, other: Setting) -> float | None:
        """Median over cases of how much faster `setting` was than `other`, on the same case and tokens."""
        by_case: dict[Case, list[float]] = {}
        for sample, against in self.beside(setting, other):
            found = ratio(sample, against)
            if found is not None:
                by_case.setdefault(sample.case, []).append(found)
        return _median([median(ratios) for ratios in by_case.values()])

    def best(self, arm: str) -> Setting | None:
        """The arm's setting that gained most over off; None when it was not measured."""
        ratios = {s: self.ratio(s, SETTING_OFF) for s in self.settings if s.arm == arm}
        found = {setting: gain for setting, gain in ratios.items() if gain is not None}
        return max(found, key=lambda setting: found[setting]) if found else None

    def best_of(self, arms: Sequence[str]) -> Setting | None:
        """The setting of any of these arms that gained most over off."""
        found = [best for arm in arms if (best := self.best(arm)) is not None]
        return max(found, key=lambda setting: self.ratio(setting, SETTING_OFF) or 0.0, default=None)


def _median(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None
