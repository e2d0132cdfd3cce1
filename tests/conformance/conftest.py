"""Everything here needs the environment of tools; without it the tests are skipped, and say so."""

from __future__ import annotations

import pytest

from conformance import environment


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    if not environment.is_ready():
        pytest.skip("the tools of conformance are not installed; run: make conformance")
