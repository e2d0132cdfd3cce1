"""A report as one HTML file that needs nothing else: style, tables, plots are inside, no script; and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path

from outrider.plots.charts import WIDTH
from outrider.plots.png import can_draw, style, write_pngs
from outrider.plots.svg import Plot
from outrider.workloads.tables import Row, html_table, markdown_table, markdown_text, shown


@dataclass(frozen=True, slots=True)
class Section:
    """What stands under one heading, in this order; nothing of it, nothing is shown."""

    title: str
    says: str = ""
    rows: Sequence[Row] = ()
    plots: Sequence[Plot] = ()
    bullets: Sequence[str] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    """Names and values."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.says or self.rows or self.plots or self.bullets or self.facts)

    def html(self) -> str:
        """As a part of the page."""
        named = (f"<dt>{escape(name)}</dt><dd>{escape(shown(value))}</dd>" for name, value in self.facts.items())
        parts = [
            f"<h2>{escape(self.title)}</h2>",
            html_table(self.says, self.rows) if self.rows else f"<p>{escape(self.says)}</p>" if self.says else "",
            f'<div class="figures">{"".join(map(_figure, self.plots))}</div>' if self.plots else "",
            f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in self.bullets)}</ul>" if self.bullets else "",
            f"<dl>{''.join(named)}</dl>" if self.facts else "",
        ]
        return "<section>\n" + "\n".join(filter(None, parts)) + "\n</section>"

    def markdown(self) -> str:
        """The same without its plots' marks, which stand in files."""
        lines = [f"- {markdown_text(one)}" for one in self.bullets]
        lines += [f"- {name}: {markdown_text(shown(value))}" for name, value in self.facts.items()]
        pictures = [f"![{plot.labels.title}]({plot.labels.key}.png)" for plot in self.plots if can_draw()]
        table = markdown_table(self.rows) if self.rows else ""
        parts = [f"## {self.title}", markdown_text(self.says), table, *pictures, "\n".join(lines)]
        return "\n\n".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report."""

    title: str
    below: str
    """The line under the title."""
    warnings: Sequence[str]
    """What a reader must know before any figure."""
    sections: Sequence[Section]


def write_page(page: Page, folder: Path, stem: str) -> list[Path]:
    """`stem` with `.html` and `.md`, and a PNG for each plot where they can be drawn; the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    html, markdown = folder / f"{stem}.html", folder / f"{stem}.md"
    sections = [one for one in page.sections if not one.is_empty]
    html.write_text(_html(page, sections), encoding="utf-8")
    words = [f"# {markdown_text(page.title)}", markdown_text(page.below)]
    words += [f"**{markdown_text(one)}**" for one in page.warnings]
    markdown.write_text("\n\n".join([*words, *(one.markdown() for one in sections)]) + "\n", encoding="utf-8")
    return [html, markdown, *write_pngs([plot for one in sections for plot in one.plots], folder)]


def _figure(plot: Plot) -> str:
    """Beside others where there is room; a wide one scrolls in its own box."""
    words = plot.labels
    # A plot made for a phone shrinks with it; a wider one keeps its type readable and scrolls.
    least = "" if round(plot.width) <= WIDTH else f' style="min-width:{plot.width:.0f}px"'
    return (
        f'<figure><div class="box" tabindex="0" role="region" aria-label="{escape(words.title)}"><div{least}>'
        f"{plot.svg}</div></div><figcaption>{escape(words.text)}</figcaption></figure>"
    )


def _html(page: Page, sections: Sequence[Section]) -> str:
    sheet = files("outrider.workloads").joinpath("page.css").read_text(encoding="utf-8")
    warnings = (f'<p class="warning" role="note">{escape(words)}</p>' for words in page.warnings)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{style()}{sheet}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escape(page.title)}</h1>\n<p class="below">{escape(page.below)}</p>\n'
        + "\n".join([*warnings, *(one.html() for one in sections)])
        + "\n</main>\n</body>\n</html>\n"
    )
