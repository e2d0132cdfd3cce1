"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the report."""

    name: str
    level: Literal["ok", "warn", "fail"]
    """`fail`: the gateway does not start or cannot answer; `warn`: it does, with less than was meant."""
    found: str
    remedy: str = ""
    """What to do; empty when there is nothing."""
