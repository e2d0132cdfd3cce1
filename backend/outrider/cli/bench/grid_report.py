"""The report of a grid: heat maps, one table, conditions; as Markdown, as a page and as PNGs."""

from __future__ import annotations

from pathlib import Path

from outrider.cli.bench.grid_cells import Cells, Grid
from outrider.plots.charts import heat_map
from outrider.plots.svg import Labels, Plot, marked
from outrider.workloads.page import Page, Section, write_page
from outrider.workloads.tables import Row

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
    return marked(drawn)


def write_grid_report(grid: Grid, folder: Path) -> list[Path]:
    """`grid.html`, `grid.md` and a PNG for each heat map; the files that were written."""
    stated = grid.runs[-1]
    done = f"{len(grid.answers)} of {grid.num_planned} answers"
    title = f"Acceptance of {grid.scope.model} by task, temperature and drafter"
    below = f"{stated.get('time', '')} on {stated.get('num_cores', '?')} cores of {stated.get('cpu', '?')}; {done}"
    part = [] if len(grid.answers) == grid.num_planned else [f"Only {done} are in; the same command goes on."]
    sections = [
        Section("Heat maps", plots=grid_plots(grid)),
        Section("All cells", _SAYS, grid_rows(grid)),
        Section("Conditions of the last run", facts=stated),
    ]
    return write_page(Page(title, below, part, sections), folder, "grid")
