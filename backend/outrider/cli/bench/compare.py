"""`outrider bench compare`: two results of one suite, request by request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    a: Annotated[Path, typer.Argument(help="Result, or its folder.")],
    b: Annotated[Path, typer.Argument(help="Another of the same suite.")],
) -> None:
    """Ratios of B over A by task and temperature, with 95 % intervals, and what differed in their conditions."""
    from outrider.workloads.compare import compare as compared
    from outrider.workloads.compare import differences
    from outrider.workloads.report_tables import against_rows
    from outrider.workloads.results import read_result
    from outrider.workloads.tables import markdown_table

    first, second = read_result(a), read_result(b)
    typer.echo(f"# {first.suite}: B ({b}) over A ({a})\n")
    typer.echo(markdown_table(against_rows(compared(first, second))))
    typer.echo("\nRatios are medians over pairs of the same request; an interval without 1 is a difference.\n")
    for difference in differences(first, second) or ["nothing differs in the conditions"]:
        typer.echo(f"- {difference}")
