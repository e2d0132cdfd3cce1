"""The images as their files describe them: what is copied is there, what is started exists, and nobody is root."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from outrider.gateway.access import OPEN_PATHS
from outrider.profiles import DEFAULT_MODEL
from shipping.dockerfiles import DOCKERFILES, ROOT, is_command, is_sent, sources, stages, words

_SECRET = re.compile(r"token|secret|passw|_key", re.IGNORECASE)
each = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)


def test_there_are_three() -> None:
    """The gateway, the embedded engine, and SGLang with our plugin."""
    assert [path.stem for path in DOCKERFILES] == ["engine", "gateway", "sglang"]


@each
def test_what_is_copied_is_in_the_tree_and_not_ignored(path: Path) -> None:
    """Every source is there, and all of it goes to the builder."""
    copied = [source for stage in stages(path) for one in stage.all("COPY") for source in sources(one)]
    assert copied
    for source in copied:
        found = ROOT / source
        files = [found] if found.is_file() else [one for one in found.rglob("*") if one.is_file()]
        names = [one.relative_to(ROOT).as_posix() for one in files if "__pycache__" not in one.parts]
        assert names, f"{source} is not there, or empty"
        assert [name for name in names if not is_sent(name)] == []


@each
def test_the_wheel_is_built_from_all_that_goes_into_it(path: Path) -> None:
    """What pyproject.toml names is copied before the wheel is built."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel, licences = build["tool"]["hatch"]["build"]["targets"]["wheel"], build["project"]["license-files"]
    needed = {"pyproject.toml", "README.md", "backend", *licences, *wheel["force-include"]}
    copied = {source for stage in stages(path)[:-1] for one in stage.all("COPY") for source in sources(one)}
    assert needed <= copied


def test_what_is_no_part_of_images_stays_here() -> None:
    """Files that may hold secrets, the history and environments are not sent, byte-code neither."""
    for name in (".env", "secret.yaml", ".git/config", ".venv/bin/python", "tests/conftest.py", "configs/fleet.yaml"):
        assert not is_sent(name), name
    assert not is_sent("backend/outrider/__pycache__/app.cpython-311.pyc")


@each
def test_the_last_stage_is_closed(path: Path) -> None:
    """Nobody is root; signals arrive; what is asked for health is answered without a key."""
    last = stages(path)[-1]
    user = last.one("USER").value
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "a number, which Kubernetes can see is not root's"
    entry = last.one("ENTRYPOINT").argv
    assert entry[:2] == ["/bin/sh", "-c"] and entry[2].startswith("exec "), "the shell replaces itself"
    assert last.one("STOPSIGNAL").value == "SIGTERM"
    (program, flag, code), port = last.one("HEALTHCHECK").argv, last.one("EXPOSE").value
    assert (program, flag) == ("python", "-c")
    compile(code, "health", "exec")
    asked = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", code)
    assert asked and asked[1] == port and asked[2] in OPEN_PATHS


@each
def test_what_is_started_exists(path: Path) -> None:
    """Commands and flags of ours are read as the program reads them."""
    last = stages(path)[-1]
    started = [*words(last.one("ENTRYPOINT").argv), *(part for one in last.all("CMD") for part in one.argv)]
    assert started[0] == "exec"
    if started[1] == "outrider":
        assert is_command([part for part in started[2:] if part not in ("$@", "2>&1")])
    else:
        assert started[1:4] == ["python", "-m", "sglang.launch_server"]


def test_a_wrong_command_would_be_seen() -> None:
    """The check itself: an unknown command, an unknown flag, and a good one."""
    assert is_command(["model", "pull", DEFAULT_MODEL])
    for wrong in (["swerve"], ["serve", "--prot", "1"], ["model", "push"], ["engine", "--hots", "0.0.0.0"]):
        assert not is_command(wrong)


@each
def test_bases_are_exact_and_layers_hold_no_secret(path: Path) -> None:
    """One base in both stages, of an exact tag; nothing that sounds like a secret is an argument or a variable."""
    found = stages(path)
    bases = {stage.one("FROM").value.split()[0] for stage in found}
    assert len(found) == 2 and len(bases) == 1
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", bases.pop())
    for stage in found:
        for one in [*stage.all("ARG"), *stage.all("ENV")]:
            assert not _SECRET.search(one.value), one.value


def test_the_gateway_has_no_tensors() -> None:
    """No extra that brings torch is asked for."""
    path = next(one for one in DOCKERFILES if one.stem == "gateway")
    asked = re.findall(r"\$1\[([a-z,]+)\]", path.read_text(encoding="utf-8"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert asked == ["postgres,tracing"]
    assert not [need for extra in asked[0].split(",") for need in extras[extra] if need.startswith("torch")]


def test_the_lock_of_sglang_agrees_with_ours() -> None:
    """SGLang's image has the version that the plugin is written for; each package is pinned once, exactly."""
    lines = (ROOT / "docker" / "sglang.lock").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.+]+", line) for line in lines)
    pins = dict(line.lower().split("==") for line in lines)
    assert len(pins) == len(lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["sglang"] == [f"sglang=={pins['sglang']}"]
    assert {"torch", "flashinfer-python", "sglang-kernel", "xgrammar"} <= pins.keys()
