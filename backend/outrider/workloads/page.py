"""A report as one HTML file that needs nothing else: its style, its tables and its plots are inside; no script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files

from outrider.plots.charts import WIDTH
from outrider.plots.png import style
from outrider.plots.svg import Plot
from outrider.workloads.tables import shown


def section(title: str, *parts: str) -> str:
    """A part with its heading; `parts` are HTML."""
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def paragraph(words: str) -> str:
    """Words, escaped."""
    return f"<p>{escape(words)}</p>"


def warning(words: str) -> str:
    """What a reader must know before any figure."""
    return f'<p class="warning" role="note">{escape(words)}</p>'


def bullets(lines: Iterable[str]) -> str:
    """A list of words, escaped."""
    return f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in lines)}</ul>"


def facts(found: Mapping[str, object]) -> str:
    """Names and values."""
    return f"<dl>{''.join(f'<dt>{escape(key)}</dt><dd>{escape(shown(v))}</dd>' for key, v in found.items())}</dl>"


def figures(plots: Sequence[Plot]) -> str:
    """Side by side where there is room; a wide one scrolls in its own box."""
    return f'<div class="figures">{"".join(map(_figure, plots))}</div>'


def _figure(plot: Plot) -> str:
    words = plot.labels
    # A plot made for a phone shrinks with it; a wider one keeps its type readable and scrolls.
    least = "" if plot.width <= WIDTH else f' style="min-width:{plot.width:.0f}px"'
    return (
        f'<figure><div class="box" tabindex="0" role="region" aria-label="{escape(words.title)}"><div{least}>'
        f"{plot.svg}</div></div><figcaption>{escape(words.text)}</figcaption></figure>"
    )


def page(title: str, below: str, parts: Sequence[str]) -> str:
    """`below` is the line under the title."""
    sheet = files("outrider.workloads").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style()}{sheet}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escape(title)}</h1>\n<p class="below">{escape(below)}</p>\n'
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )
