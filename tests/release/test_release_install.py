"""The wheel in environments that were empty before: with the engine it runs the demo, without it the gateway."""

from __future__ import annotations

import os
import re
import sys
import venv
from pathlib import Path

import pytest

from outrider.runtimes.scripted import ScriptedLane
from outrider.version import __version__
from release.conftest import ROOT
from release.processes import asked, ran, serving

pytestmark = [pytest.mark.release, pytest.mark.timeout(900)]

LOCK = ROOT / "requirements.lock"


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """Built anew, with the source distribution beside it."""
    for old in [*dist.glob("outrider-*.whl"), *dist.glob("outrider-*.tar.gz")]:
        old.unlink()
    ran(sys.executable, "-m", "hatchling", "build", "-d", dist, cwd=ROOT)
    (found,) = dist.glob("outrider-*.whl")
    return found


def installed(folder: Path, wheel: Path, extras: str) -> Path:
    """The command of a new environment with the wheel and the locked versions of what it needs."""
    venv.create(folder, with_pip=True)
    install = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", LOCK)
    ran(*install, f"{wheel}{extras}", variables=outside(folder))
    return folder / "bin" / "outrider"


def outside(home: Path) -> dict[str, str]:
    """The environment without what points at the tree, and with a cache that is empty."""
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "OUTRIDER_CACHE", "XDG_CACHE_HOME")
    return {name: value for name, value in os.environ.items() if name not in left_out} | {"XDG_CACHE_HOME": str(home)}


def test_the_demo_runs(wheel: Path, tmp_path: Path) -> None:
    """Installed with the engine: the model is fetched, three prompts are answered twice, and compared in a table."""
    outrider = installed(tmp_path / "venv", wheel, "[engine]")
    done = ran(outrider, "demo", cwd=tmp_path, variables=outside(tmp_path / "cache"))
    rows = re.findall(r"^│ (?:code|quote|creative) .*$", done.stdout, re.MULTILINE)
    assert len(rows) == 3 and "…" not in "".join(rows), done.stdout
    assert (tmp_path / "cache" / "outrider" / "models").is_dir()


async def test_the_gateway_runs_without_the_engine(wheel: Path, tmp_path: Path) -> None:
    """Installed alone: a lane that somebody else runs is served; what the engine is needed for says so in a line."""
    outrider = installed(tmp_path / "venv", wheel, "")
    variables = outside(tmp_path)
    config = tmp_path / "gateway.yaml"
    async with ScriptedLane() as lane:
        config.write_text(f"server: {{port: 0}}\nlanes: [{{name: a, kind: url, urls: ['{lane.url}']}}]\n")
        command = [str(outrider), "serve", "--config", str(config)]
        async with serving(command, cwd=tmp_path, variables=variables) as served:
            await asked(served.url)
        assert served.status == 0, served.log
    told = r"outrider: this needs \w+, which is not installed: pip install 'outrider\[engine\]'\n"
    for arguments in (["demo"], ["model", "pull"], ["engine"]):
        done = ran(outrider, *arguments, cwd=tmp_path, variables=variables, status=1)
        assert done.stdout == "" and re.fullmatch(told, done.stderr), done.stderr
    assert ran(outrider, "--version", cwd=tmp_path).stdout == f"outrider {__version__}\n"
    licence = next((tmp_path / "venv" / "lib").glob("python3*/site-packages/outrider-*.dist-info/licenses/LICENSE"))
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()
    policy = next((tmp_path / "venv" / "lib").glob("python3*/site-packages/outrider/data/policies/code.yaml"))
    ran(outrider, "policy", "validate", policy, cwd=tmp_path, variables=variables)
