"""What a round costs: a measured table over sequences, rows and context, which engine and policy both read."""

from __future__ import annotations

import platform
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Layout of the JSON form.
VERSION = 1
#: Draft tokens of the proposals that are timed.
DRAFTED = 4

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
    round_s: tuple[tuple[tuple[float, ...], ...], ...]
    draft_s: dict[str, float]
    """Seconds of one proposal of `DRAFTED` tokens, by drafter."""
    drafters: dict[str, DraftCost] = {}
    """The same by draft step, with whole rounds and memory."""
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

    def at(self, num_sequences: int, num_rows: float, context: float) -> float:
        """Seconds of a round, by linear interpolation; beyond the last point of an axis, by its last slope."""
        places = (
            _place(self.num_sequences, num_sequences),
            _place(self.widths, num_rows / max(num_sequences, 1)),
            _place(self.contexts, context),
        )
        seconds = 0.0
        for corner in product((0, 1), repeat=3):
            weight = 1.0
            index = []
            for side, place in zip(corner, places, strict=True):
                weight *= place.share if side else 1.0 - place.share
                index.append(place.upper if side else place.lower)
            if weight:
                seconds += weight * self.round_s[index[0]][index[1]][index[2]]
        return max(seconds, 0.0)


@dataclass(frozen=True, slots=True)
class ClosedCost:
    """What a round costs where nothing was measured: flat up to a knee, where arithmetic begins to bind, then linear.

    `at` = `step_s` * (1 + `row` * (rows - 1) + `slope` * max(0, rows / `knee` - 1)); with the defaults of `row` and
    `slope` it is `step_s` * max(1, rows / `knee`).
    """

    step_s: float = 0.02
    """Seconds of a round with one row."""
    knee: float = 256.0
    """Rows that memory traffic pays for: the ratio of arithmetic to memory speed."""
    row: float = 0.0
    """What one more row adds before the knee already, in rounds of one row."""
    slope: float = 1.0
    draft_steps: Mapping[str, float] = field(default_factory=dict)
    """Cost of one draft step, by drafter, in rounds with one row per sequence; others have their usual cost."""

    def at(self, num_sequences: int, num_rows: float, context: float) -> float:
        """Seconds of a round; sequences and context do not matter here."""
        return self.step_s * (1 + self.row * (num_rows - 1) + self.slope * max(0.0, num_rows / self.knee - 1))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value lies between two neighbouring points of an axis; the share of the upper may exceed 1."""

    lower: int
    upper: int
    share: float


def _place(axis: Sequence[int], value: float) -> _Place:
    if len(axis) == 1 or value <= axis[0]:
        return _Place(0, 0, 0.0)
    lower = min(bisect_right(axis, value), len(axis) - 1) - 1
    return _Place(lower, lower + 1, (value - axis[lower]) / (axis[lower + 1] - axis[lower]))


def cpu_name() -> str:
    """The processor, as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
