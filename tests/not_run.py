"""Tests whose tools are not here: skipped, and told at the end of the run; failed where tools are required."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

import pytest

_MARK = "NOT RUN: "
#: Set to 1, what cannot be run is a failure.
REQUIRED = "OUTRIDER_REQUIRE_TOOLS"


def not_run(what: str) -> NoReturn:
    """Leave the test, or the fixture of many: `what` names what is not tested here, why, and what to do."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{_MARK}{what} (${REQUIRED} is 1)", pytrace=False)
    pytest.skip(_MARK + what)


def summary(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """A line for each thing that was not run, with the number of its tests."""
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    found = Counter(reason.partition(_MARK)[2] for reason in reasons if _MARK in reason)
    return [f"{_MARK}{count} tests: {what}" for what, count in found.items()]
