"""What is believed of drafts before any was seen: hazards by depth, of each drafter for each kind of request."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from typing import Any, NamedTuple

from outrider.core import MAX_K, DrafterAbility
from outrider.cost import DRAWN_FROM
from outrider.policy.counts import DEPTHS

#: Drafters that look up in the text that is there; a dry run on the prompt says something of them.
LOOK_UPS = frozenset({"ngram", "suffix"})
#: First and later hazards at temperature 0, by task. Look-ups: measured on the shipped prompts with the embedded
#: engine. Models: published figures of EAGLE-3 class heads, interpolated where a task has none.
_LOOK_UP_PRIOR = {
    "code": (0.20, 0.70), "edit": (0.55, 0.80), "quote": (0.60, 0.90), "extract": (0.55, 0.80),
    "summarise": (0.21, 0.70), "rag": (0.28, 0.70), "translate": (0.25, 0.70), "maths": (0.18, 0.70),
    "chat": (0.12, 0.60), "creative": (0.08, 0.60),
}  # fmt: skip
_MODEL_PRIOR = {
    "code": 0.75, "edit": 0.75, "quote": 0.80, "extract": 0.70, "summarise": 0.60, "rag": 0.60, "translate": 0.60,
    "maths": 0.81, "chat": 0.55, "creative": 0.50,
}  # fmt: skip
#: What a drafter's first hazard adds to that, and what each depth multiplies it by.
_MODEL_SHAPE = {
    "eagle2": (-0.05, 1.0),
    "hybrid": (-0.05, 1.0),
    "medusa": (-0.15, 0.75),
    "draft_model": (-0.05, 1.0),
    "layer_skip": (-0.1, 1.0),
}
#: What that is over all tasks: a head whose card says how often it is right differs from task to task as others do.
_USUAL_MODEL = sum(_MODEL_PRIOR.values()) / len(_MODEL_PRIOR)
#: What follows the end most often is right as much more often than what followed it last.
_SUFFIX = 1.3
#: Of a look-up's first drafts that are right, those that promise enough that a hybrid does not ask its head.
_WORTHY = 0.7
#: No draft is surer than this before it was seen.
_SUREST = 0.95
#: Drafters of trees up to this bucket of temperatures, of chains above; and the least of a tree's later hazards:
#: beside a likely draft stand others that are nearly as likely.
_TREES, _TREES_UP_TO, _TREE_HAZARD = frozenset({"eagle2", "eagle3", "medusa", "hybrid"}), 1, 0.72
#: Upper bounds of the temperature buckets, and what deterministic drafts keep of their acceptance in each. One ends
#: where trees give way to chains, so that none holds counts of both.
_TEMPERATURES = (0.2, math.nextafter(DRAWN_FROM, 0), 0.9, 1.15, math.inf)
_KEPT_HOT = (1.0, 0.85, 0.64, 0.45, 0.38)
_LENGTHS = (512, 4096, math.inf)


def temperature_bucket(temperature: float) -> int:
    """Which band of temperatures it lies in."""
    return bisect_left(_TEMPERATURES, temperature)


def length_bucket(num_tokens: int) -> int:
    """Which band of prompt lengths it lies in."""
    return bisect_left(_LENGTHS, num_tokens)


class Cell(NamedTuple):
    """What acceptance is kept by."""

    drafter: str
    is_sampled: bool
    temperature: int
    """Bucket."""
    task: str
    length: int
    """Bucket of the prompt's length."""
    tenant: str | None = None

    @property
    def levels(self) -> tuple[tuple[Any, ...], ...]:
        """Keys of the counts that bear on it, from the widest on."""
        wide = (self.drafter, self.is_sampled, self.temperature)
        task = (*wide, self.task, self.length)
        return (wide, task) if self.tenant is None else (wide, task, (*task, self.tenant))


def steps_at_most(drafter: DrafterAbility, cell: Cell) -> int:
    """Draft steps of a round: hot requests have chains, where others have trees of bounded depth."""
    return drafter.depth if cell.temperature <= _TREES_UP_TO else MAX_K


@lru_cache(maxsize=1024)
def prior_hazards(
    cell: Cell, first: float | None = None, floor: float = 0.0, accuracy: tuple[float, ...] = ()
) -> tuple[float, ...]:
    """`first` is the workload's own first hazard at temperature 0; `floor` bounds it from below where a dry run on
    the prompt has shown more; `accuracy` is what a head's card says, over all tasks."""
    kept = 1.0 if cell.is_sampled else _KEPT_HOT[cell.temperature]
    if cell.drafter in LOOK_UPS:
        start, *rests = _looked_up(cell.task, cell.drafter)
    elif cell.drafter == "prediction":
        start, rests = 0.8, [0.9] * (DEPTHS - 1)
    elif cell.drafter == "hybrid":
        start, *rests = _mixed(cell, _headed(cell, accuracy))
    else:
        start, *rests = _headed(cell, accuracy)
    if first is not None:
        start = first
    if cell.drafter in LOOK_UPS:
        start = max(start, floor)
    return (start * kept, *(rest * kept for rest in rests))


def _looked_up(task: str, drafter: str = "suffix") -> list[float]:
    start, rest = _LOOK_UP_PRIOR[task]
    return [start * (_SUFFIX if drafter == "suffix" else 1.0)] + [rest] * (DEPTHS - 1)


def _headed(cell: Cell, accuracy: tuple[float, ...]) -> list[float]:
    """Of a model or a head; one whose card says how often it is right differs from task to task as others do."""
    is_tree = cell.drafter in _TREES and cell.temperature <= _TREES_UP_TO
    if accuracy:
        share = _MODEL_PRIOR[cell.task] / _USUAL_MODEL
        deep = (accuracy + (accuracy[-1],) * DEPTHS)[:DEPTHS]
        found = [min(share * rate, _SUREST) for rate in deep]
        return [*found[:2], *[max(rate, _TREE_HAZARD) for rate in found[2:]]] if is_tree else found
    shift, factor = _MODEL_SHAPE.get(cell.drafter, (0.0, 1.0))
    start = _MODEL_PRIOR[cell.task] + shift
    if is_tree:
        return [start, start * factor, *[max(start, _TREE_HAZARD) * factor] * (DEPTHS - 2)]
    return [start * factor**depth for depth in range(DEPTHS)]


def _mixed(cell: Cell, headed: list[float]) -> list[float]:
    """Of a look-up that a head stands in for where it finds too little."""
    looked_up = _looked_up(cell.task)
    num_found = _WORTHY * looked_up[0] * _KEPT_HOT[cell.temperature]
    start = num_found + (1 - num_found) * headed[0]
    share = num_found / start
    return [start, *[share * a + (1 - share) * b for a, b in zip(looked_up[1:], headed[1:], strict=True)]]
