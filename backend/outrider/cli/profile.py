"""`outrider profile`: what rounds of the embedded engine cost on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.console import progress_bar
from outrider.config import DEFAULT_MODEL, cache_dir

if TYPE_CHECKING:
    from rich.table import Table

    from outrider.cost import CostTable

_BAR_WIDTH = 40


def profile(
    model: Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")] = DEFAULT_MODEL,
) -> None:
    """Measure whole rounds by sequences, rows and context, and store the table that the engine reads at its start."""
    from rich.console import Console

    from outrider.engine.engine import Engine, EngineLimits
    from outrider.engine.profile import profile as measure
    from outrider.engine.profile import table_path
    from outrider.engine.pull import locate

    folder = locate(model, cache_dir())
    with progress_bar() as progress:
        progress("loading the model", 0.0)
        table = measure(Engine(folder, EngineLimits()), folder, progress)
    path = table_path(folder, cache_dir())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table.model_dump_json(indent=1) + "\n", encoding="utf-8")
    console = Console()
    console.print(_plot(table))
    for name, seconds in table.draft_s.items():
        console.print(f"one proposal of {name}: {seconds * 1e3:.3f} ms", highlight=False)
    weights, token = table.weight_bytes / 1e6, table.bytes_per_token / 1e3
    console.print(
        f"packed weights {weights:.0f} MB, read in {table.read_s * 1e3:.1f} ms; {token:.0f} KB a cached token"
    )
    console.print(f"stored in {path}", soft_wrap=True)


def _plot(table: CostTable) -> Table:
    """A bar per cell: milliseconds of a round."""
    from rich.table import Table

    plot = Table("sequences", "rows each", "context", "ms", "", title="one round")
    longest = max(cell for plane in table.round_s for row in plane for cell in row)
    for i, count in enumerate(table.num_sequences):
        for j, width in enumerate(table.widths):
            for m, context in enumerate(table.contexts):
                seconds = table.round_s[i][j][m]
                bar = "█" * max(1, round(_BAR_WIDTH * seconds / longest))
                plot.add_row(str(count), str(width), str(context), f"{seconds * 1e3:.1f}", bar)
    return plot
