"""What `outrider bench heads` measured as tables: ways to draft against off, acceptance by task, and the aims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean
from typing import Any

from outrider.cli.bench.aims import Aim, at_least
from outrider.cli.bench.samples import SETTING_OFF, Sample, Samples, Setting, accept_length

#: Depths whose agreement is shown.
DEPTHS = 4
#: What the heads are meant to reach, greedily.
MIN_AGREEMENT, MIN_ACCEPT_LENGTH, MIN_DYNAMIC_GAIN = 0.55, 2.0, 1.08
MIN_CHAT_GAIN, MIN_CODE_GAIN = 1.3, 1.6
#: Groups that are chat and code: the project's own prompts, and Spec-Bench's.
CHAT = ("chat", *(f"spec {name}" for name in ("writing", "roleplay", "reasoning", "stem", "humanities", "qa")))
CODE = ("code", "spec coding")


def head_rows(samples: Samples) -> list[dict[str, Any]]:
    """A row for each way to draft and temperature, over all tasks."""
    rows = []
    for temperature in _temperatures(samples):
        part = at_temperature(samples, temperature)
        for setting in part.settings:
            answers = [sample for sample in part.of(setting) if sample.stats is not None]
            row: dict[str, Any] = {"T": str(temperature), "drafts": str(setting), "tokens/s": part.speed(setting)}
            if answers:
                row |= {
                    "against off": part.ratio(setting, SETTING_OFF),
                    "accept length": accept_length(answers),
                    "agreement by depth": " ".join(f"{rate:.2f}" for rate in _hazards(answers)),
                    "draft ms a step": 1e3 * sum(s.draft_s for s in answers) / _steps(answers),
                    "same text": mean(
                        a.token_ids == b.token_ids for a, b in part.beside(setting, SETTING_OFF)
                    ) if temperature == 0.0 else None,
                }  # fmt: skip
            rows.append(row)
    return rows


def grid(samples: Samples) -> list[dict[str, Any]]:
    """Accept length over task, temperature and drafter."""
    rows = []
    for group in samples.groups:
        for temperature in _temperatures(samples):
            part = [s for s in samples.in_groups([group]).all if s.case.temperature == temperature]
            row: dict[str, Any] = {"task": group, "T": str(temperature)}
            for setting in samples.settings:
                answers = [s for s in part if s.setting == setting and s.stats is not None]
                if answers:
                    row[str(setting)] = accept_length(answers)
            rows.append(row)
    return rows


def _steps(answers: Sequence[Sample]) -> int:
    return sum(sample.stats.num_verify_steps for sample in answers if sample.stats is not None)


def _hazards(answers: Sequence[Sample]) -> list[float]:
    """By depth, how often a step that got there got further; depths that no step reached are left out."""
    reached = [0] * (DEPTHS + 1)
    for sample in answers:
        for accepted, count in enumerate(sample.stats.histogram if sample.stats is not None else ()):
            for depth in range(min(accepted, DEPTHS) + 1):
                reached[depth] += count
    return [further / here for here, further in pairwise(reached) if here]


def _temperatures(samples: Samples) -> list[float]:
    return sorted({case.temperature for case in samples.cases})


def at_temperature(samples: Samples, temperature: float) -> Samples:
    """Those at exactly that temperature."""
    return Samples([sample for sample in samples.all if sample.case.temperature == temperature])


def head_aims(samples: Samples, k: int) -> list[Aim]:
    """Of EAGLE heads, on greedy answers; a missed one says what it lost its time with."""
    greedy = at_temperature(samples, 0.0)
    chat, code = greedy.in_groups(CHAT), greedy.in_groups(CODE)
    chain, dynamic, static = (Setting(f"eagle2 {shape}", k) for shape in ("chain", "dynamic", "static"))
    hazards = _hazards(chat.of(chain))
    lengths = [accept_length(chat.of(setting)) for setting in (dynamic, static)]
    gain = lengths[0] / lengths[1] if lengths[0] and lengths[1] else None
    arms = [setting.arm for setting in greedy.settings if setting.arm.startswith("eagle")]
    return [
        at_least("EAGLE's first draft token is right, chat", hazards[0] if hazards else None, MIN_AGREEMENT),
        at_least(f"EAGLE's accept length at k={k}, chat", lengths[0], MIN_ACCEPT_LENGTH, str(dynamic)),
        at_least(f"dynamic / static tree of {k}, accept length, chat", gain, MIN_DYNAMIC_GAIN),
        _speed("EAGLE / off, chat", chat, arms, MIN_CHAT_GAIN),
        _speed("EAGLE / off, code", code, arms, MIN_CODE_GAIN),
    ]


def _speed(what: str, samples: Samples, arms: Sequence[str], wanted: float) -> Aim:
    best = samples.best_of(arms)
    if best is None:
        return at_least(what, None, wanted)
    aim = at_least(what, samples.ratio(best, SETTING_OFF), wanted, str(best))
    answers = samples.of(best)
    length, round_s = accept_length(answers), _round_s(answers)
    plain_s = _round_s(samples.of(SETTING_OFF))
    if aim.is_met is not False or length is None or not plain_s:
        return aim
    draft_s = sum(sample.draft_s for sample in answers) / _steps(answers)
    why = (
        f"a step writes {length:.2f} tokens and takes {round_s / plain_s:.2f} plain ones: drafts "
        f"{draft_s / plain_s:.2f}, verifying {(round_s - draft_s) / plain_s:.2f}"
    )
    return replace(aim, why=why)


def _round_s(answers: Sequence[Sample]) -> float:
    """Mean seconds between the moments at which tokens came."""
    spans = [b - a for sample in answers for a, b in pairwise(sample.times_s)]
    return mean(spans) if spans else 0.0
