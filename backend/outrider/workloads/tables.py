"""Tables of measurements as text: figures with their intervals, in Markdown and in HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple


class Figure(NamedTuple):
    """A figure and the interval around it; None of both where it has none."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> str:
        """`low–high`; empty when it is not known."""
        return "" if self.low is None or self.high is None else f"{shown(self.low)}–{shown(self.high)}"


#: A cell; None where nothing was measured.
Value = str | int | float | bool | Figure | None
Row = Mapping[str, Value]

#: Characters that mean something to Markdown; a line break would end a row.
_MARKDOWN = str.maketrans({char: f"\\{char}" for char in "\\|`*_<>[]"} | {"\n": " ", "\r": " "})


_CLASS = ' class="figure"'


def shown(value: object) -> str:
    """As a person reads it; three or four digits are enough."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Figure):
        return shown(value.value) + (f" ({value.interval})" if value.interval else "")
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    return f"{value:.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 0.1 else 4}f}"


def columns(rows: Sequence[Row]) -> list[str]:
    """Every column that some row has, in the order of their first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def markdown_text(words: str) -> str:
    """Letters that mean themselves."""
    return words.translate(_MARKDOWN)


def markdown_table(rows: Sequence[Row]) -> str:
    """Figures are aligned to the right."""
    names = columns(rows)
    cells = [names, *([shown(row.get(name)) for name in names] for row in rows)]
    lines = ["| " + " | ".join(map(markdown_text, found)) + " |" for found in cells]
    sides = ["---:" if _is_figures(rows, name) else "---" for name in names]
    return "\n".join([lines[0], "| " + " | ".join(sides) + " |", *lines[1:]])


def html_table(says: str, rows: Sequence[Row]) -> str:
    """In a box of its own, below what it says. Each figure is a `data` element with its exact value; the first column
    names the row."""
    names = columns(rows)
    sides = {name: _CLASS if _is_figures(rows, name) else "" for name in names}
    head = "".join(f'<th scope="col"{side}>{escape(name)}</th>' for name, side in sides.items())
    body = ""
    for i, row in enumerate(rows):
        is_next = i > 0 and row.get(names[0]) != rows[i - 1].get(names[0])
        cells = "".join(_cell(j, row.get(name), sides[name]) for j, name in enumerate(names))
        body += f"<tr{' class=next' if is_next else ''}>{cells}</tr>\n"
    return (
        f'<p class="says">{escape(says)}</p>\n'
        f'<div class="table" role="region" aria-label="{escape(says)}" tabindex="0">'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def _is_figures(rows: Sequence[Row], name: str) -> bool:
    """Whether a column holds figures, which stand to the right as does their name."""
    return any(_is_figure(row.get(name)) for row in rows)


def _is_figure(value: Value) -> bool:
    return isinstance(value, (int, float, Figure)) and not isinstance(value, bool)


def _cell(column: int, value: Value, side: str) -> str:
    if column == 0:
        return f'<th scope="row">{escape(shown(value))}</th>'
    if value is None or not _is_figure(value):
        return f"<td{side if value is None else ''}>{escape(shown(value))}</td>"
    exact = value.value if isinstance(value, Figure) else value
    inner = f'<data value="{exact!r}">{shown(exact)}</data>'
    if isinstance(value, Figure) and value.interval:
        inner += f' <span class="interval">{value.interval}</span>'
    return f"<td{_CLASS}>{inner}</td>"
