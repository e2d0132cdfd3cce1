"""Reloading: swapped as a whole when good, kept when bad, and what was learnt stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.errors import PolicyError
from outrider.policy.loader import Source
from outrider.policy.reload import PolicyFiles

GOOD = "version: 1\nworkload: default\ndrafters: {ngram: {max_k: 3}}\n"


def test_a_good_change_is_swapped_in_and_a_bad_one_is_not(tmp_path: Path) -> None:
    """With the problem in one line; repairing the file clears it."""
    path = tmp_path / "default.yaml"
    path.write_text(GOOD, encoding="utf-8")
    files = PolicyFiles(Source([tmp_path]))
    first, digest = files.current, files.digest
    assert files.reload() and files.current is first

    path.write_text(GOOD.replace("3", "2"), encoding="utf-8")
    assert files.reload()
    second = files.current
    assert second is not first and files.digest != digest
    assert second.learner is first.learner

    path.write_text(GOOD.replace("3", "99"), encoding="utf-8")
    assert not files.reload()
    assert files.current is second
    assert files.problem is not None and files.problem.startswith(f"{path}:3:27: drafters.ngram.max_k: ")

    path.write_text(GOOD.replace("3", "2"), encoding="utf-8")
    assert files.reload() and files.problem is None and files.current is second


def test_files_that_are_wrong_at_first_stop_the_start(tmp_path: Path) -> None:
    """There is no last good version to keep."""
    with pytest.raises(PolicyError, match="no policy files"):
        PolicyFiles(Source([tmp_path]))
