"""What is built to be installed: everything that is needed at run time, nothing else, and one version."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from outrider.version import __version__
from shipping.dockerfiles import ROOT

SOURCE = ROOT / "backend" / "outrider"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a source distribution, and a wheel that was made from the tree."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, capture_output=True
    )
    return folder


def files_of(folder: str) -> set[str]:
    return {one.relative_to(ROOT).as_posix() for one in (ROOT / folder).rglob("*") if one.is_file()}


def test_the_wheel_holds_what_runs_and_no_more(built: Path) -> None:
    """All of the package with its data, locks and stand-ins; no tests, no byte-code, no history."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    ours = {one.relative_to(SOURCE.parent).as_posix() for one in SOURCE.rglob("*") if one.is_file()}
    data = {f"outrider/data/{name}" for folder in ("policies", "workloads", "heads") for name in files_of(folder)}
    about = {name for name in names if name.startswith(f"outrider-{__version__}.dist-info/")}
    assert names - about == {name for name in ours if "__pycache__" not in name} | data
    standins = "outrider/sglang_plugin/standins/"
    assert {f"{standins}outrider_sglang.py", f"{standins}triton/__init__.py", "outrider/py.typed"} <= names


def test_the_wheel_tells_what_it_is(built: Path) -> None:
    """Its version is the one of the code, and SGLang finds the plugin in it."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        metadata = HeaderParser().parsestr(archive.read(f"outrider-{__version__}.dist-info/METADATA").decode())
        points = archive.read(f"outrider-{__version__}.dist-info/entry_points.txt").decode()
    assert metadata["Version"] == __version__
    assert "[sglang.srt.plugins]\noutrider = outrider.sglang_plugin.entry:load" in points
    assert "outrider = outrider.__main__:main" in points


def test_what_is_built_carries_its_licence(built: Path) -> None:
    """Apache-2.0, by name and by its whole text: where the wheel is installed, and in the source distribution."""
    (wheel,), (sources,) = built.glob("*.whl"), built.glob("*.tar.gz")
    about, text = f"outrider-{__version__}.dist-info", (ROOT / "LICENSE").read_bytes()
    assert b"Apache License\n" in text and b"END OF TERMS AND CONDITIONS" in text
    with zipfile.ZipFile(wheel) as archive:
        metadata = HeaderParser().parsestr(archive.read(f"{about}/METADATA").decode())
        assert archive.read(f"{about}/licenses/LICENSE") == text
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    with tarfile.open(sources) as archive:
        member = archive.extractfile(f"outrider-{__version__}/LICENSE")
        assert member is not None and member.read() == text


def test_the_source_distribution_makes_the_same_wheel(built: Path, tmp_path: Path) -> None:
    """It is complete: built from it, the wheel has the same files; and it can be tested."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extraction_filter = getattr(tarfile, "data_filter", None)  # which came with Python 3.11.4
        source.extractall(tmp_path)
    tree = tmp_path / f"outrider-{__version__}"
    assert (tree / "tests" / "conftest.py").is_file() and (tree / "requirements.lock").is_file()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    with zipfile.ZipFile(next(built.glob("*.whl"))) as one, zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as other:
        assert set(one.namelist()) == set(other.namelist())


def test_the_version_stands_in_one_place() -> None:
    """No other file of ours says it but the changelog, whose newest entry is it, and the tags of images."""
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest and newest[1] == __version__
    said = [one for one in SOURCE.rglob("*.py") if f'"{__version__}"' in one.read_text(encoding="utf-8")]
    assert [one.name for one in said] == ["version.py"]
