"""Traces of production: what is read, how it is scaled, and where a wrong line stands."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.workloads.traces import Entry, read_trace

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"


def write(folder: Path, *lines: str, name: str = "trace.csv") -> Path:
    path, text = folder / name, "\n".join((HEAD, *lines)) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_requests_are_ordered_and_counted_from_the_first(tmp_path: Path, name: str) -> None:
    """Plain and gzipped; fractions of a second have seven digits."""
    later, first = "2023-11-16 18:17:05.5000000,10,2", "2023-11-16 18:17:03.0000000,4808,17"
    entries = read_trace(write(tmp_path, later, first, name=name))
    assert entries == [Entry(0.0, 4808, 17), Entry(2.5, 10, 2)]


def test_scaling_is_of_rate_and_length() -> None:
    """Twice as fast, a tenth as long, never shorter than a token."""
    assert Entry(10.0, 95, 3).scaled(2.0, 0.1) == Entry(5.0, 10, 1)


@pytest.mark.parametrize(
    ("line", "problem"),
    [("yesterday,1,2", "isoformat"), ("2023-11-16 18:17:05.0,x,2", "'x'"), ("2023-11-16 18:17:05.0,1", "int"),
     ("2023-11-16 18:17:05.0,1,-2", "below 0")],
)  # fmt: skip
def test_a_wrong_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    """By file and number."""
    path = write(tmp_path, "2023-11-16 18:17:03.0,1,2", line)
    with pytest.raises(ConfigError, match=rf"trace.csv:3: .*{problem}"):
        read_trace(path)


def test_a_file_without_the_columns_or_requests_is_refused(tmp_path: Path) -> None:
    """The missing column is named."""
    path = tmp_path / "other.csv"
    path.write_text("TIMESTAMP,ContextTokens\n")
    with pytest.raises(ConfigError, match=r"other.csv:1: no column GeneratedTokens"):
        read_trace(path)
    with pytest.raises(ConfigError, match="holds no requests"):
        read_trace(write(tmp_path))
