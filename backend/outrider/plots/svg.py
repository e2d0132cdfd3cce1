"""SVG markup: elements, and the plot that they make up, with a title and a description for those who cannot see it.

Colours come from classes, so that a page gives them for light and dark and a PNG gets the light ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

#: Size of type in the units of every plot, and about how wide one letter of it is.
FONT, LETTER = 12.0, 6.4
#: Series that look different; a further one looks like the first.
NUM_LOOKS = 6
#: Height of the title.
_HEAD = 26.0


@dataclass(frozen=True, slots=True)
class Labels:
    """What a plot says in words."""

    key: str
    """Name of its file, and unique on a page; letters, digits and dashes."""
    title: str
    x: str
    y: str
    text: str
    """For those who cannot see it, and below it: what the marks are."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A finished plot."""

    labels: Labels
    svg: str
    width: float
    num_marks: int


def marked(plots: Iterable[Plot]) -> list[Plot]:
    """Those that have something to show."""
    return [plot for plot in plots if plot.num_marks]


def number(value: float) -> str:
    """Of a coordinate or an axis: as short as it can be."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) < 1e4 else f"{value:g}"


def element(name: str, *inner: str, **attributes: str | float) -> str:
    """`class_` is `class`, and `_` in names is `-`; text inside must be escaped already."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{number(v) if isinstance(v, (int, float)) else escape(v)}"'
        for key, v in attributes.items()
    )
    return f"<{name}{given}>{''.join(inner)}</{name}>" if inner else f"<{name}{given}/>"


def text(x: float, y: float, words: str, anchor: str = "start", **attributes: str | float) -> str:
    """Words at a point; `anchor` says which end of them lies there."""
    return element("text", escape(words), x=x, y=y, text_anchor=anchor, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """From one point to another."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def cut(words: str, width: float) -> str:
    """As much as fits, with an ellipsis when it is not all."""
    most = max(1, int(width / LETTER))
    return words if len(words) <= most else words[: most - 1] + "…"


def legend(looks: Mapping[str, int], width: float) -> tuple[str, float]:
    """Swatches with names, in as many lines as they need, from y = 0 on; and their height. One series needs none."""
    if len(looks) < 2:
        return "", 0.0
    x, y, parts = 0.0, FONT, []
    for name, look in looks.items():
        shown = cut(name, width - 18)
        needed = 18 + LETTER * len(shown) + 12
        if x and x + needed > width:
            x, y = 0.0, y + FONT + 6
        parts.append(element("rect", x=x, y=y - 9, width=12, height=9, class_=f"fill s{look}"))
        parts.append(text(x + 17, y, shown))
        x += needed
    return element("g", *parts, class_="legend"), y + 8


def looks_of(names: Iterable[str], order: Sequence[str] = ()) -> dict[str, int]:
    """The look of each series: by its place in `order`, which several plots may share, or else among these."""
    found = set(names := list(names))
    ranked = [*order, *(name for name in dict.fromkeys(names) if name not in order)]
    return {name: i % NUM_LOOKS for i, name in enumerate(ranked) if name in found}


def plot(labels: Labels, size: tuple[float, float], parts: Iterable[str]) -> Plot:
    """`size`: width and height; marks are the elements of class `mark`."""
    body, (width, height) = "".join(parts), size
    head = text(0, FONT + 2, cut(labels.title, width), class_="title")
    svg = element(
        "svg",
        element("title", escape(labels.title), id=f"{labels.key}-title"),
        element("desc", escape(labels.text), id=f"{labels.key}-desc"),
        head,
        element("g", body, transform=f"translate(0 {number(_HEAD)})"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height + _HEAD)}",
        role="img",
        class_="plot",
        aria_labelledby=f"{labels.key}-title {labels.key}-desc",
        font_size=FONT,
    )
    return Plot(labels, svg, width, body.count('class="mark'))
