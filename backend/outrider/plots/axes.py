"""Scales from data to the plane, their ticks, and the frame that a chart is drawn into."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.plots.svg import FONT, LETTER, line, number, text

#: A logarithmic axis is worth its trouble from this ratio on.
WIDE = 30.0
_NUM_TICKS = 5


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to positions along an axis."""

    low: float
    high: float
    start: float
    """Where `low` lies."""
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value lies in the drawing; values beyond the ends lie on them."""
        bend: Callable[[float], float] = math.log10 if self.is_log else float
        value = min(max(value, self.low), self.high)
        share = (bend(value) - bend(self.low)) / (bend(self.high) - bend(self.low))
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round numbers within."""
        if self.is_log:
            return _log_ticks(self.low, self.high)
        step = _round_step((self.high - self.low) / _NUM_TICKS)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(i * step, 10) for i in range(first, last + 1)]


def _round_step(least: float) -> float:
    decade = 10.0 ** math.floor(math.log10(least))
    return next(step * decade for step in (1.0, 2.0, 5.0, 10.0) if step * decade >= least * (1 - 1e-9))


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten; the powers alone where those are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [digit * 10.0**power for power in powers for digit in digits]
        found = [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(found) <= _NUM_TICKS + 2:
            return found
    return found


def reach(values: Sequence[float], *, from_zero: bool = False) -> tuple[float, float]:
    """Least and most, apart even where all are equal or there are none."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if from_zero:
        low = min(0.0, low)
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def is_wide(values: Sequence[float]) -> bool:
    """Whether a linear axis would squeeze most of these into a corner."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > WIDE


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a chart's marks go: between its scales, x to the right and y upwards."""

    x: Scale
    y: Scale

    def axes(self, x_label: str, y_label: str, x_names: Sequence[tuple[float, str]] | None = None) -> list[str]:
        """Grid, ticks and labels; `x_names` stand in for the ticks of x. The label of y stands above its axis."""
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        parts = []
        for tick in self.y.ticks():
            at = self.y(tick)
            parts.append(line(left, at, right, at, "grid"))
            parts.append(text(left - 6, at + 4, number(tick), "end", class_="tick"))
        names = [(self.x(tick), number(tick)) for tick in self.x.ticks()] if x_names is None else x_names
        for at, name in names:
            parts.append(text(at, bottom + FONT + 4, name, "middle", class_="tick"))
            if x_names is None:
                parts.append(line(at, bottom, at, bottom + 4, "axis"))
        parts.append(line(left, bottom, right, bottom, "axis"))
        parts.append(text((left + right) / 2, bottom + 2 * FONT + 9, x_label, "middle", class_="label"))
        parts.append(text(0, top - 13, y_label, class_="label"))
        return parts


def room_for(ticks: Sequence[float]) -> float:
    """How wide the tick labels of a y axis are."""
    return 10 + LETTER * max((len(number(tick)) for tick in ticks), default=1)
