"""The environment of SGLang lanes: built once, whole or not at all, and what a lane is started with."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outrider.errors import SetupError
from outrider.runtimes import sglang_env


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of nothing, and a cache of its own."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    lock = tmp_path / "some.lock"
    lock.write_text("# nothing\n")
    return lock


def test_two_builders_build_once(lock: Path) -> None:
    """Both get the folder; what a cut-off build left there is gone, and a third call does nothing."""
    left = sglang_env.environment(lock) / "left"
    left.mkdir(parents=True)
    assert not sglang_env.is_ready(lock)
    with pytest.raises(SetupError, match="outrider lanes env"):
        sglang_env.python(lock)
    seen: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: sglang_env.ensure(lambda what, _: seen.append(what), lock), range(2)))
    assert folders == [sglang_env.environment(lock)] * 2
    assert seen.count("installing SGLang") == 1
    assert not left.exists()
    assert sglang_env.python(lock).exists()
    sglang_env.ensure(lambda what, _: seen.append(what), lock)
    assert seen.count("done") == 1


def test_a_build_that_fails_says_why_and_is_not_taken_for_one(lock: Path) -> None:
    """The next try begins anew."""
    lock.write_text("./nowhere.whl\n")
    with pytest.raises(SetupError, match=r"pip install failed: .*nowhere"):
        sglang_env.ensure(lock=lock)
    assert not sglang_env.is_ready(lock)


def test_the_lock_s_content_names_the_folder(lock: Path) -> None:
    """Another lock is another environment, so that an old one is never taken for the new."""
    first = sglang_env.environment(lock)
    lock.write_text("# other\n")
    assert sglang_env.environment(lock) != first
    assert sglang_env.environment(lock).parent == first.parent


def test_every_package_of_the_lock_is_pinned() -> None:
    """pip resolves nothing, so a name without a version would take what is newest."""
    lines = sglang_env.LOCK.read_text(encoding="utf-8").splitlines()
    assert all(line.count("==") == 1 for line in lines)
    assert {"sglang==0.5.23", "torch==2.13.0"} <= set(lines)
    assert any(line.startswith("prometheus_client==") for line in lines)


def test_a_lane_finds_stand_ins_and_plugin_first_and_writes_byte_code() -> None:
    """On the path stands one folder before what was there; other variables are kept."""
    variables = sglang_env.cpu_variables({"PYTHONPATH": "/x", "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/y", "A": "b"})
    assert variables["PYTHONPATH"] == os.pathsep.join([str(sglang_env.STANDINS), "/x"])
    assert variables["PATH"] == os.pathsep.join([str(sglang_env.environment() / "bin"), "/y"])
    assert variables["A"] == "b"
    assert variables["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in variables
    names = {path.name for path in sglang_env.STANDINS.iterdir()}
    assert {"sgl_kernel", "triton", "outrider_sglang.py", "outrider_sglang-0.dist-info"} <= names
