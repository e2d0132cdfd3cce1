"""What a round costs: a measured table over sequences, rows and context, which engine and policy both read."""

from __future__ import annotations

import platform
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Layout of the JSON form.
VERSION = 2
#: Draft tokens of the proposals that are timed.
DRAFTED = 4
#: Draft steps of a proposal at most where heads draft trees: of more nodes a tree gets broader and not deeper.
MAX_DEPTH = 6
#: The same by drafter of our engine's.
TREE_DEPTHS = {"eagle2": MAX_DEPTH, "eagle3": MAX_DEPTH, "hybrid": MAX_DEPTH}
#: From this temperature on heads draft chains, which are drawn: what is likeliest is then accepted less often.
DRAWN_FROM = 0.6

#: How far beyond the last point of an axis its last slope is followed, in lengths of its last interval.
_FAR = 1e4
Axis = Annotated[tuple[int, ...], Field(min_length=1)]


class DraftCost(BaseModel):
    """What one drafter costs, for one sequence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first_s: float
    """Seconds of a proposal of one token."""
    step_s: float
    """Seconds that each further draft token adds."""
    round_s: float
    """Seconds of a whole round: the proposal of `DRAFTED` tokens, its verification, and all between."""
    weight_bytes: int = 0
    """Memory of weights that only this drafter uses."""
    bytes_per_token: int = 0
    """Memory of one position of its own cache, outside the target's."""
    digest: str = ""
    """Of the weights or layers that it drafted with, and their type; empty for a drafter that has none."""


class CostTable(BaseModel):
    """Seconds of whole rounds: schedule, propose, forward, verify, commit.

    `round_s[i][j][l]` belongs to `num_sequences[i]` running sequences with `widths[j]` rows each (draft tokens + 1)
    and `contexts[l]` tokens of context each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Annotated[int, Field(ge=VERSION, le=VERSION)]
    key: dict[str, str]
    """Hardware, model and build that it was measured on; another key's table says nothing here."""
    num_sequences: Axis
    widths: Axis
    contexts: Axis
    round_s: tuple[tuple[tuple[Annotated[float, Field(gt=0)], ...], ...], ...]
    """As measured. Noise may let it fall along an axis; what `at` gives never does."""
    drafters: dict[str, DraftCost] = {}
    """By drafter; of one that is missing nothing was measured."""
    bytes_per_token: int
    """Memory of one cached position."""
    weight_bytes: int
    """Memory that one forward reads at least once: the packed weights."""
    read_s: float
    """Seconds to read that much memory, measured in the same run."""
    resident_bytes: int = 0
    """Memory of the process after the largest rounds."""

    @model_validator(mode="after")
    def _rectangular(self) -> CostTable:
        for name in ("num_sequences", "widths", "contexts"):
            axis = getattr(self, name)
            if list(axis) != sorted(set(axis)):
                raise ValueError(f"{name} must ascend")
        shape = (len(self.num_sequences), len(self.widths), len(self.contexts))
        found = {(len(self.round_s), len(plane), len(row)) for plane in self.round_s for row in plane}
        if found != {shape}:
            raise ValueError(f"round_s must have the shape {shape}")
        return self

    def with_drafters(self, digests: Mapping[str, str]) -> CostTable:
        """Without the costs of drafters that were measured with something else than these digests stand for."""
        others = {name for name, cost in self.drafters.items() if cost.digest != digests.get(name, "")}
        return self.model_copy(update={"drafters": {k: v for k, v in self.drafters.items() if k not in others}})

    @cached_property
    def _axes(self) -> tuple[tuple[float, ...], ...]:
        """With a far point each, so that what is beyond the last one lies between two."""
        axes = (self.num_sequences, self.widths, self.contexts)
        return tuple((*axis, _follow(axis[-1], axis[-2])) if len(axis) > 1 else axis for axis in axes)

    @cached_property
    def _cells(self) -> dict[tuple[int, ...], float]:
        """Seconds at the points of `_axes`, none below one before it: noise is evened out upwards."""
        cells: dict[tuple[int, ...], float] = {}
        for index in product(*(range(len(axis)) for axis in self._axes)):
            before = [(*index[:a], i - 1, *index[a + 1 :]) for a, i in enumerate(index) if i]
            cells[index] = max([self._measured(index), *(cells[other] for other in before)])
        return cells

    def _measured(self, index: tuple[int, ...]) -> float:
        """Seconds at a point of `_axes` as measured, at a far one by the last slope."""
        for a, axis in enumerate((self.num_sequences, self.widths, self.contexts)):
            if index[a] == len(axis):
                last, before = (self._measured((*index[:a], len(axis) - i, *index[a + 1 :])) for i in (1, 2))
                return _follow(last, before)
        i, j, k = index
        return self.round_s[i][j][k]

    def at(self, num_sequences: int, num_rows: float, context: float) -> float:
        """Seconds of a round, above 0: linear between points, and beyond the last one of an axis by its last slope.

        More sequences of one width, rows or context never cost less.
        """
        cells = self._cells
        of_sequences, of_width, of_context = map(
            _beside, self._axes, (num_sequences, num_rows / max(num_sequences, 1), context)
        )
        seconds = 0.0
        for i, share in of_sequences:
            for j, share_of_width in of_width:
                for k, share_of_context in of_context:
                    seconds += share * share_of_width * share_of_context * cells[i, j, k]
        return seconds


@dataclass(frozen=True, slots=True)
class ClosedCost:
    """What a round costs where nothing was measured: flat up to a knee, where arithmetic begins to bind, then linear.

    `at` = `step_s` * (1 + `row` * (rows - 1) + `slope` * max(0, rows / `knee` - 1)); with the defaults of `row` and
    `slope` it is `step_s` * max(1, rows / `knee`).
    """

    step_s: Annotated[float, Field(gt=0)] = 0.02
    """Seconds of a round with one row."""
    knee: Annotated[float, Field(gt=0)] = 256.0
    """Rows that memory traffic pays for: the ratio of arithmetic to memory speed."""
    row: float = 0.0
    """What one more row adds before the knee already, in rounds of one row."""
    slope: float = 1.0
    draft_steps: Mapping[str, float] = field(default_factory=dict)
    """Cost of one draft step, by drafter, in rounds with one row per sequence; others have their usual cost."""
    draft_steps_each: Mapping[str, float] = field(default_factory=dict)
    """The same of drafters that draft for one sequence after the other: of each, in rounds of one row."""

    def at(self, num_sequences: int, num_rows: float, context: float) -> float:
        """Seconds of a round; sequences and context do not matter here."""
        return self.step_s * (1 + self.row * (num_rows - 1) + self.slope * max(0.0, num_rows / self.knee - 1))


#: On two cores with 135 M parameters, for lanes on a processor that measured nothing.
SMALL_CPU = ClosedCost(
    0.027, 6, 0.06, 0.65,
    draft_steps_each={
        "ngram": 0.005, "suffix": 0.03, "eagle2": 0.09, "eagle3": 0.09, "hybrid": 0.08, "medusa": 0.1,
        "draft_model": 0.25, "layer_skip": 0.6,
    },
)  # fmt: skip


def _follow(last: float, before: float) -> float:
    """The value at an axis's far point, by its last two points."""
    return last + _FAR * (last - before)


def _beside(axis: Sequence[float], value: float) -> tuple[tuple[int, float], ...]:
    """The points beside a value, with their shares in it."""
    if value <= axis[0]:
        return ((0, 1.0),)
    if value >= axis[-1]:
        return ((len(axis) - 1, 1.0),)
    lower = bisect_right(axis, value) - 1
    share = (value - axis[lower]) / (axis[lower + 1] - axis[lower])
    return ((lower, 1.0 - share), (lower + 1, share)) if share else ((lower, 1.0),)


def cpu_name() -> str:
    """The processor, as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
