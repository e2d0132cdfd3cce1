"""What the engine is meant to reach, against a run's own figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from outrider.cli.bench.measure import Results
from outrider.cli.bench.samples import SETTING_OFF, Samples, Setting
from outrider.cli.bench.show import Row
from outrider.core import DRAFTERS

MAX_STEP_READS = 2.4
MIN_COPYING_GAIN = 1.6
MIN_PREDICTION_GAIN = 3.0
MIN_BATCH_GAIN = 3.0
MAX_PYTHON_SHARE = 0.2
#: Arms of others that draft in the same way, by drafter; the fastest of them counts.
COUNTERPARTS = {
    "ngram": ("hf_lookup",),
    "suffix": ("hf_lookup",),
    "layer_skip": ("hf_assisted", "hf_early_exit"),
    "draft_model": ("hf_assisted",),
}
_LLAMA = ("llama", "llama_lookup")
#: The group that an aim is about: Spec-Bench's, or ours where its questions were not given.
SUMMARIES = ("spec/summarization", "summarise")
RETRIEVAL = ("spec/rag", "rag")


@dataclass(frozen=True, slots=True)
class Aim:
    """`is_met` is None when the run did not measure it."""

    aim: str
    wanted: str
    figure: float | None
    is_met: bool | None
    by: str = ""
    """Which setting the figure belongs to, the best of those measured."""
    why: str = ""
    """What made it miss, or what else must be known of the figure."""


def aims(results: Results) -> list[Aim]:
    """What the run was to show, with the figures that it found."""
    samples = Samples(results.samples)
    step = results.anatomy
    reads = None if step is None else step.step_s / step.read_s
    share = None if step is None else step.python_share
    return [
        at_most("off step / reading the packed weights", reads, MAX_STEP_READS),
        *(_counterpart(samples, drafter) for drafter in COUNTERPARTS),
        _against_llama(samples, "quoting", ("quote",)),
        _against_llama(samples, "summarising", SUMMARIES),
        _gain(samples, "summarisation / off", SUMMARIES, ("ngram", "suffix"), MIN_COPYING_GAIN),
        _gain(samples, "RAG / off", RETRIEVAL, ("ngram", "suffix"), MIN_COPYING_GAIN),
        _gain(samples, "edit with a 90 % right prediction / off", ("edit",), ("prediction",), MIN_PREDICTION_GAIN),
        at_least("batch of 8 / batch of 1, off", batch_gain(results), MIN_BATCH_GAIN),
        at_most("share of Python in an off step", share, MAX_PYTHON_SHARE),
    ]


def batch_gain(results: Results) -> float | None:
    """Median throughput of 8 requests over that of one, without speculation."""
    speeds = {
        size: [b.tokens_per_s for b in results.batch if b.setting == SETTING_OFF and b.size == size]
        for size in (1, 8)
    }
    return median(speeds[8]) / median(speeds[1]) if all(speeds.values()) else None


def _counterpart(samples: Samples, drafter: str) -> Aim:
    best, others = samples.best(drafter), COUNTERPARTS[drafter]
    figure = None if best is None else _over_fastest(samples, best, others)
    gain = None if best is None else samples.ratio(best, SETTING_OFF)
    why = "" if gain is None or gain >= 1.0 else f"slower than no speculation: {gain:.2f} of off"
    return replace(at_least(f"{drafter} / {' or '.join(others)}", figure, 1.0, str(best or "")), why=why)


def _against_llama(samples: Samples, what: str, groups: Sequence[str]) -> Aim:
    part = _part(samples, groups)
    best = part.best_of(DRAFTERS)
    figure = None if best is None else _over_fastest(part, best, _LLAMA)
    return at_least(f"{what} / llama.cpp", figure, 1.0, str(best or ""))


def _gain(samples: Samples, what: str, groups: Sequence[str], drafters: Sequence[str], wanted: float) -> Aim:
    part = _part(samples, groups)
    best = part.best_of(drafters)
    return at_least(what, None if best is None else part.ratio(best, SETTING_OFF), wanted, str(best or ""))


def _part(samples: Samples, groups: Sequence[str]) -> Samples:
    """The first of these groups that was measured."""
    return samples.in_groups([group for group in groups if group in samples.groups][:1])


def _over_fastest(samples: Samples, ours: Setting, others: Sequence[str]) -> float | None:
    """How much faster than whichever of the others comes closest."""
    ratios = [ratio for arm in others if (ratio := samples.ratio(ours, Setting(arm))) is not None]
    return min(ratios, default=None)


def at_least(aim: str, figure: float | None, wanted: float, by: str = "") -> Aim:
    """An aim that is met from `wanted` on; neither met nor missed where there is no figure."""
    return Aim(aim, f">= {wanted:g}", figure, None if figure is None else figure >= wanted, by)


def at_most(aim: str, figure: float | None, wanted: float) -> Aim:
    """An aim that is met up to `wanted`; neither met nor missed where there is no figure."""
    return Aim(aim, f"<= {wanted:g}", figure, None if figure is None else figure <= wanted)


def aim_rows(found: Sequence[Aim]) -> list[Row]:
    """A row for each aim, for tables and JSON."""
    words = {True: "met", False: "MISSED", None: "not measured"}
    return [
        {
            "aim": aim.aim,
            "wanted": aim.wanted,
            "figure": aim.figure,
            "result": "undecided" if aim.is_met is None and aim.figure is not None else words[aim.is_met],
            "with": aim.by,
            **({"why": aim.why} if aim.why else {}),
        }
        for aim in found
    ]
