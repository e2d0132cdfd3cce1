"""Four charts: lines, bars, intervals in rows, and a heat map."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from outrider.plots.axes import Frame, Scale, is_wide, reach, room_for
from outrider.plots.svg import FONT, LETTER, Labels, Plot, cut, element, legend, line, looks_of, number, plot, text

#: Width of every chart but the heat map, so that two of them stand side by side and one fills a phone.
WIDTH = 420.0
_HEIGHT, _BELOW, _RIGHT = 190.0, 40.0, 12.0
_ROW, _BAND = 11.0, 9.0
_CELL_HEIGHT, _LEAST_CELL = 21.0, 44.0
#: Blues from nearly white on, and from which one on the text is white.
_BLUES = (
    "#f3f7fc", "#dfeaf6", "#c6daef", "#a5c6e5", "#7eaed8", "#5993c9", "#3a78b5", "#235e9c", "#154680", "#0b3060",
)  # fmt: skip
_WHITE_FROM = 6


@dataclass(frozen=True, slots=True)
class Series:
    """Points in the order of their line; series of one name look alike."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axes:
    """What a chart of lines does not take from its points."""

    y_range: tuple[float, float] | None = None
    """None takes all values, and zero."""
    may_be_log: bool = False
    """Whether x is logarithmic where its values are far apart."""


def line_chart(labels: Labels, series: Sequence[Series], axes: Axes = Axes(), order: Sequence[str] = ()) -> Plot:
    """For `order` see `looks_of`, here and below."""
    series = [one for one in series if one.points]
    looks = looks_of((one.name for one in series), order)
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    key, top = legend(looks, WIDTH)
    y_range = reach(ys, from_zero=True) if axes.y_range is None else axes.y_range
    frame = _frame(top, reach(xs), y_range, is_log=axes.may_be_log and is_wide(xs))
    parts = [key, *frame.axes(labels.x, labels.y)]
    for one in series:
        parts.append(_line(frame, one.points, looks[one.name]))
    return plot(labels, (WIDTH, frame.y.start + _BELOW), parts)


def _line(frame: Frame, points: Sequence[tuple[float, float]], look: int) -> str:
    """A dot where there is one point, of which a line would show nothing."""
    places = [(frame.x(x), frame.y(y)) for x, y in points]
    if len(places) == 1:
        return element("circle", cx=places[0][0], cy=places[0][1], r=3, class_=f"mark fill s{look}")
    way = " ".join(f"{number(x)},{number(y)}" for x, y in places)
    return element("polyline", points=way, class_=f"mark line s{look}")


def bar_chart(
    labels: Labels, categories: Sequence[str], series: Mapping[str, Sequence[float]], order: Sequence[str] = ()
) -> Plot:
    """Bars of all series side by side in each category."""
    looks = looks_of(series, order)
    key, top = legend(looks, WIDTH)
    values = [value for found in series.values() for value in found]
    frame = _frame(top, (0.0, float(max(1, len(categories)))), reach(values, from_zero=True))
    slot = (frame.x.end - frame.x.start) / max(1, len(categories))
    width = 0.8 * slot / max(1, len(series))
    every = math.ceil(LETTER * (1 + max(map(len, categories), default=1)) / slot)
    middles = [(frame.x.start + (i + 0.5) * slot, name) for i, name in enumerate(categories)]
    parts = [key, *frame.axes(labels.x, labels.y, middles[::every])]
    for place, (name, look) in enumerate(looks.items()):
        for i, value in enumerate(series[name]):
            x = frame.x.start + (i + 0.1) * slot + place * width
            said = element("title", escape(f"{name}, {categories[i]}: {value:.3g}"))
            y = frame.y(value)
            parts.append(
                element(
                    "rect", said, x=x, y=y, width=max(width - 1, 0.5), height=frame.y.start - y,
                    class_=f"mark fill s{look}",
                )
            )  # fmt: skip
    return plot(labels, (WIDTH, frame.y.start + _BELOW), parts)


def _frame(top: float, xs: tuple[float, float], ys: tuple[float, float], *, is_log: bool = False) -> Frame:
    top += FONT + 12
    y = Scale(*ys, top + _HEIGHT, top)
    return Frame(Scale(*xs, room_for(y.ticks()), WIDTH - _RIGHT, is_log), y)


def interval_chart(
    labels: Labels, rows: Mapping[str, Mapping[str, tuple[float, float, float]]], order: Sequence[str] = ()
) -> Plot:
    """Rows of values with their intervals (value, low, high) by series, from zero on."""
    looks = looks_of((name for row in rows.values() for name in row), order)
    key, top = legend(looks, WIDTH)
    label_width = min(150.0, 10 + LETTER * max(map(len, rows), default=1))
    ends = [1.03 * high for row in rows.values() for _, _, high in row.values()]  # marks stay off the edge
    x = Scale(*reach(ends, from_zero=True), label_width, WIDTH - _RIGHT)
    height = sum(_ROW * len(row) + _BAND for row in rows.values())
    parts = [key, *(line(x(tick), top + 6, x(tick), top + 6 + height, "grid") for tick in x.ticks())]
    y = top + 6
    for row_name, row in rows.items():
        bottom = y + _ROW * len(row) + _BAND
        parts.append(text(label_width - 8, (y + bottom) / 2 + 4, cut(row_name, label_width - 10), "end"))
        parts.append(line(0, bottom, WIDTH - _RIGHT, bottom, "grid"))
        for name, (value, low, high) in row.items():
            y += _ROW
            parts.append(_interval(x, y - 1, (value, low, high), name, looks[name]))
        y = bottom
    for tick in x.ticks():
        parts.append(text(x(tick), y + FONT + 4, number(tick), "middle", class_="tick"))
    parts.append(text((x.start + x.end) / 2, y + 2 * FONT + 9, labels.x, "middle", class_="label"))
    return plot(labels, (WIDTH, y + _BELOW), parts)


def _interval(x: Scale, y: float, found: tuple[float, float, float], name: str, look: int) -> str:
    value, low, high = found
    said = element("title", escape(f"{name}: {value:.3g}, {low:.3g} to {high:.3g}"))
    bar = line(x(low), y, x(high), y, f"whisker s{look}")
    return element("g", said, bar, element("circle", cx=x(value), cy=y, r=3.5, class_=f"mark fill s{look}"))


def heat_map(labels: Labels, rows: Mapping[str, Sequence[float | None]], columns: Sequence[str]) -> Plot:
    """A value by row and column, None where nothing was measured; numbers stand in the cells."""
    found = [value for row in rows.values() for value in row if value is not None]
    low, high = reach(found)
    left = 10 + LETTER * max(map(len, rows), default=1)
    top = 16 + 0.72 * LETTER * max(map(len, columns), default=1)
    lean = top - 16  # of the last column's name, from its middle on
    num = max(1, len(columns))
    width = max(_LEAST_CELL, min((WIDTH - left - 8) / num, (WIDTH - left - lean) / (num - 0.5)))
    parts = []
    for j, name in enumerate(columns):
        x = left + (j + 0.5) * width
        turn = f"rotate(-45 {number(x)} {number(top - 6)})"
        parts.append(text(x, top - 6, name, transform=turn))
    for i, (name, row) in enumerate(rows.items()):
        y = top + i * _CELL_HEIGHT
        parts.append(text(left - 6, y + 15, name, "end"))
        for j, value in enumerate(row):
            said = f"{name}, {columns[j]}: {'not measured' if value is None else f'{value:.3g}'}"
            share = None if value is None else (value - low) / (high - low)
            parts += _cell((left + j * width, y, width), value, share, said)
    y = top + len(rows) * _CELL_HEIGHT + 8
    parts += _ramp(left, y, labels.x, (low, high))
    right = left + len(columns) * width
    return plot(labels, (right + max(8.0, lean - width / 2), y + 34), parts)


def _cell(box: tuple[float, float, float], value: float | None, share: float | None, said: str) -> Iterator[str]:
    x, y, width = box
    size = {"x": x + 0.5, "y": y + 0.5, "width": width - 1, "height": _CELL_HEIGHT - 1}
    title = element("title", escape(said))
    if value is None or share is None:
        yield element("rect", title, class_="missing", **size)
        yield text(x + width / 2, y + 15, "–", "middle", class_="tick")
        return
    step = min(int(share * len(_BLUES)), len(_BLUES) - 1)
    yield element("rect", title, class_="mark", fill=_BLUES[step], **size)
    ink = "on-dark" if step >= _WHITE_FROM else "on-light"
    yield text(x + width / 2, y + 15, f"{value:.2f}", "middle", class_=ink)


def _ramp(left: float, y: float, words: str, ends: tuple[float, float]) -> Iterator[str]:
    """What the colours mean."""
    low, high = (f"{end:.2f}" for end in ends)
    yield text(left, y + 10, low, class_="tick")
    start = left + LETTER * len(low) + 6
    for i, colour in enumerate(_BLUES):
        yield element("rect", x=start + 10 * i, y=y, width=10, height=12, fill=colour)
    yield text(start + 10 * len(_BLUES) + 6, y + 10, f"{high}  {words}", class_="tick")
