"""Everything here needs the environment of tools; without it nothing runs, and the end of the run says so."""

from __future__ import annotations

import pytest

from conformance import environment
from not_run import not_run


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    if not environment.TOOLS.is_ready:
        not_run("other makers' checkers, which are not installed; run: make conformance")
