"""The report of a grid: heat maps, one table, conditions; as Markdown, as a page and as PNGs."""

from __future__ import annotations

from pathlib import Path

from outrider.cli.bench.grid_cells import Cells, Grid
from outrider.plots.charts import heat_map
from outrider.plots.png import write_pngs
from outrider.plots.svg import Labels, Plot
from outrider.workloads import page
from outrider.workloads.tables import Row, html_table, markdown_table, markdown_text, shown

_SAYS = (
    "Accept length: tokens per verify step. Acceptance: accepted drafts over proposed ones. / off: tokens per second "
    "over those without speculation, on the same prompts, one request at a time. Same text: greedy answers."
)


def grid_rows(grid: Grid) -> list[Row]:
    """A row for each task, temperature and setting that was measured."""
    cells = Cells(grid)
    return [
        {
            "task": row[0],
            "T": f"{row[1]:g}",
            "drafter": setting.arm,
            "k": setting.k,
            "accept length": cells.accept_length(row, setting),
            "acceptance": cells.accept_rate(row, setting),
            "/ off": cells.speed(row, setting),
            "same text": cells.same_text(row, setting),
            "answers": len(cells.of(row, setting)),
            "verify steps": cells.num_steps(row, setting),
        }
        for row in cells.rows
        for setting in cells.settings
        if cells.of(row, setting)
    ]


def grid_plots(grid: Grid) -> list[Plot]:
    """Heat maps of accept length and speed over tasks and temperatures."""
    cells = Cells(grid)
    columns = [str(setting) for setting in cells.settings]
    accept = Labels(
        "accept-length", "Accept length", "tokens per verify step", "",
        "Tokens per verify step by task and temperature (down) and drafter with its draft tokens (across); 1 is what "
        "useless drafts give. A dash was not measured.",
    )  # fmt: skip
    speed = Labels(
        "speed", "Speed against no speculation", "times as fast", "",
        "Tokens per second over those without speculation, one request at a time on this machine; below 1 it does "
        "not pay.",
    )  # fmt: skip
    drawn = [heat_map(accept, cells.table(cells.accept_length), columns)]
    drawn.append(heat_map(speed, cells.table(cells.speed), columns))
    return [plot for plot in drawn if plot.num_marks]


def write_grid_report(grid: Grid, folder: Path) -> list[Path]:
    """`grid.md`, `grid.html` and a PNG for each heat map; the files that were written."""
    drawn, rows = grid_plots(grid), grid_rows(grid)
    pictures = write_pngs(drawn, folder)
    stated = grid.runs[-1]
    done = f"{len(grid.answers)} of {grid.num_planned} answers"
    title = f"Acceptance of {grid.plan.model} by task, temperature and drafter"
    below = f"{stated.get('time', '')} on {stated.get('num_cores', '?')} cores of {stated.get('cpu', '?')}; {done}"
    part = [] if len(grid.answers) == grid.num_planned else [f"Only {done} are in; the same command goes on."]
    parts = [
        *map(page.warning, part),
        page.section("Heat maps", page.figures(drawn)),
        page.section("All cells", html_table(_SAYS, rows)),
        page.section("Conditions of the last run", page.facts(stated)),
    ]
    html, markdown = folder / "grid.html", folder / "grid.md"
    html.write_text(page.page(title, below, parts), encoding="utf-8")
    lines = [f"# {markdown_text(title)}", markdown_text(below), *(f"**{words}**" for words in part)]
    lines += [f"![{path.stem}]({path.name})" for path in pictures]
    lines += [_SAYS, markdown_table(rows), "## Conditions of the last run"]
    lines.append("\n".join(f"- {key}: {markdown_text(shown(value))}" for key, value in stated.items()))
    markdown.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return [html, markdown, *pictures]
