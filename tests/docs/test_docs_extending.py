"""Every change that the documentation shows: its patch fits the source, and then it does what it is for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs_pages import ROOT, Block, blocks_of

_BLOCKS = blocks_of(ROOT / "docs" / "extending.md")
_CHANGES = list(zip(_BLOCKS[::2], _BLOCKS[1::2], strict=True))


def _run(command: list[str], folder: Path, text: str = "") -> None:
    environment = os.environ | {"PYTHONPATH": str(folder / "backend")}
    done = subprocess.run(
        command, cwd=folder, input=text, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("patch", "check"), _CHANGES, ids=["drafter", "lane", "signal"])
def test_a_change_as_it_is_shown(patch: Block, check: Block, model_folder: Path, tmp_path: Path) -> None:
    """A copy of the source takes the patch and passes the check, which the source itself does not."""
    assert (patch.language, check.language) == ("diff", "python")
    for name in ("backend", "policies", "workloads", "heads"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.raises(AssertionError):
        _run([sys.executable, "-W", "error", "-c", check.text], tmp_path)
    _run(["git", "apply", "-"], tmp_path, patch.text)
    _run([sys.executable, "-c", check.text], tmp_path)
