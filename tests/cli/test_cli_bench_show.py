"""How tables are printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.bench.show import as_table
from outrider.cli.main import app
from outrider.errors import ConfigError


def test_a_table_has_every_column_that_some_row_has() -> None:
    """In the order of their first appearance; what a row lacks is a dash."""
    table = as_table("title", [{"a": 1.234, "b": True}, {"b": False, "c": "x"}])
    assert [column.header for column in table.columns] == ["a", "b", "c"]
    assert [list(column.cells) for column in table.columns] == [["1.23", "-"], ["yes", "no"], ["-", "x"]]


@pytest.mark.parametrize("name", ["engine", "gateway", "heads", "load", "policy", "workers"])
def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path, name: str) -> None:
    """Before anything is measured, which would be lost."""
    for file in (tmp_path / "none" / "figures.json", tmp_path):
        result = CliRunner().invoke(app, ["bench", name, "--json", str(file)])
        assert isinstance(result.exception, ConfigError) and f"--json {file}: " in str(result.exception)
