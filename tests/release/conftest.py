"""Everything here needs the environment of tools; without it nothing runs, and the end of the run says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from not_run import not_run
from release.environment import TOOLS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    if not TOOLS.is_ready:
        not_run("the checks of a release, whose tools are not installed; run: make release-check")


@pytest.fixture(scope="session")
def dist() -> Path:
    """Where the release is put; in no commit."""
    folder = ROOT / "dist"
    folder.mkdir(exist_ok=True)
    return folder
