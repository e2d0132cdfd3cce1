"""How tables are printed."""

from __future__ import annotations

from outrider.cli.bench.show import as_table


def test_a_table_has_every_column_that_some_row_has() -> None:
    """In the order of their first appearance; what a row lacks is a dash."""
    table = as_table("title", [{"a": 1.234, "b": True}, {"b": False, "c": "x"}])
    assert [column.header for column in table.columns] == ["a", "b", "c"]
    assert [list(column.cells) for column in table.columns] == [["1.23", "-"], ["yes", "no"], ["-", "x"]]
