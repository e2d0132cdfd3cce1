"""What is not run is told at the end, and fails where tools are required; seen in a run of pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize("is_required", [False, True])
def test_tools_that_are_not_there(tmp_path: Path, is_required: bool) -> None:
    """Below everything else stands how many tests were not run and why; with $OUTRIDER_REQUIRE_TOOLS they fail."""
    required = {"OUTRIDER_REQUIRE_TOOLS": "1"} if is_required else {}
    environment = {name: value for name, value in os.environ.items() if name != "OUTRIDER_REQUIRE_TOOLS"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "conformance", TESTS / "conformance"],
        env=environment | required | {"OUTRIDER_CACHE": str(tmp_path), "PY_COLORS": "0"}, cwd=TESTS.parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-2]
    if is_required:
        assert done.returncode == 1, done.stdout
        assert "NOT RUN: other makers' checkers" in done.stdout
    else:
        assert done.returncode == 0, done.stdout
        assert last.startswith("NOT RUN: 10 tests: other makers' checkers, which are not installed"), done.stdout
