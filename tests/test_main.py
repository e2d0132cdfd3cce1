"""The command's outermost layer: what an installation lacks becomes one line."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from outrider.__main__ import EXTRAS

ROOT = Path(__file__).parents[1]


def without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that cannot import the package."""
    code = f"import sys; sys.modules[{package!r}] = None; from outrider.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("package", "arguments"),
    [("gguf", ["model", "list"]), ("gguf", ["demo"]), ("torch", ["engine"])],
    ids=["model", "demo", "engine"],
)
def test_what_an_extra_brings_is_named(package: str, arguments: list[str]) -> None:
    """Who has installed the gateway alone is told what to install, and sees no traceback."""
    done = without(package, *arguments)
    assert done.returncode == 1
    assert done.stderr == f"outrider: this needs {package}, which is not installed: pip install 'outrider[engine]'\n"


def test_another_missing_module_is_a_fault() -> None:
    """It is ours, so that where it is missing is shown."""
    done = without("outrider.cli.serve", "serve")
    assert done.returncode == 1 and "Traceback" in done.stderr


def test_the_extras_are_those_of_the_package() -> None:
    """Every package of the engine's extra is known by the name that Python misses."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in ("engine", "plots"):
        needs = project["optional-dependencies"][extra]
        needed = {need.split(">")[0].split("=")[0].replace("-", "_") for need in needs}
        assert needed == {package for package, brought_by in EXTRAS.items() if brought_by == extra}
