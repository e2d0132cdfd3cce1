"""Traces of production: when requests came and how long they and their answers were. Azure's public format."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from outrider.errors import ConfigError
from outrider.workloads.files import read_text

#: Columns of AzureLLMInferenceTrace (Patel et al., Splitwise, ISCA 2024).
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a trace."""

    at_s: float
    """From the first request."""
    num_context: int
    num_generated: int

    def scaled(self, speed: float, length: float) -> Entry:
        """`speed` times as many requests in a second, each `length` times as long but of one token at least."""
        context, generated = (max(1, math.ceil(num * length)) for num in (self.num_context, self.num_generated))
        return Entry(self.at_s / speed, context, generated)


def read_trace(path: Path) -> list[Entry]:
    """The requests by time, of a plain or a gzipped file. ConfigError names file and line."""
    rows = csv.DictReader(read_text(path).splitlines())
    if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
        raise ConfigError(f"{path}:1: no column {missing[0]}; a trace has {', '.join(_COLUMNS)}")
    seen = sorted(_read(path, rows.line_num, row) for row in rows)
    if not seen:
        raise ConfigError(f"{path}: holds no requests")
    return [Entry(at_s - seen[0][0], context, generated) for at_s, context, generated in seen]


def _read(path: Path, line: int, row: dict[str, str]) -> tuple[float, int, int]:
    try:
        # Without a zone the hours of one file are still apart as they should be.
        at_s = datetime.fromisoformat(row["TIMESTAMP"] + "+00:00").timestamp()
        lengths = int(row["ContextTokens"]), int(row["GeneratedTokens"])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}:{line}: {error}") from error
    if min(lengths) < 0:
        raise ConfigError(f"{path}:{line}: a number of tokens below 0")
    return at_s, *lengths
