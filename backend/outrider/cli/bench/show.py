"""How a measurement is shown: tables with what was left out and the conditions, its file, the folder of its page."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.errors import ConfigError
from outrider.workloads.tables import columns, shown

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]
#: Columns of tables that are not printed to a terminal.
WIDTH = 180


def show(
    tables: Mapping[str, Sequence[Mapping[str, Any]]], notes: Sequence[str], stated: Mapping[str, object]
) -> None:
    """`tables` are rows by title."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:  # a file or a pipe has no edge to fold at
        console.width = WIDTH
    for title, rows in tables.items():
        console.print(as_table(title, rows))
    for note in notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    console.print("conditions: " + ", ".join(f"{key} {value}" for key, value in stated.items()), soft_wrap=True)


def _to_be_written(file: Path | None) -> Path | None:
    """Before anything is measured, which would be lost."""
    if file is not None and (file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK)):
        raise ConfigError(f"--json {file}: cannot be written")
    return file


#: The option of every measurement that has such a file.
JsonFile = Annotated[
    Path | None, typer.Option("--json", callback=_to_be_written, help="Write all figures and conditions here.")
]


def write_json(file: Path | None, data: Mapping[str, Any]) -> None:
    """To `--json`, where it was given."""
    if file is not None:
        file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def made_folder(out: Path) -> None:
    """Make the folder of `--out`, before anything is measured, which would be lost. ConfigError when that fails."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error


def as_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """For the terminal; columns are all keys of the rows."""
    from rich.table import Table

    names = columns(rows)
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(shown(row.get(name)) for name in names))
    return table
