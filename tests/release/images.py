"""Images built and entered without an engine of containers: buildah, on a base that debootstrap makes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outrider.config import cache_dir
from release.conftest import ROOT
from release.processes import ran
from shipping.dockerfiles import stages

PROGRAMS = ("buildah", "debootstrap", "unshare", "chroot")
_STORE = cache_dir() / "images"
#: The root is the image's, and nobody can write to it; /proc is there, as in every container;
#: then the image's user and variables, and nothing of ours.
_ENTER = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && mount --bind /proc "$1/proc" || exit 70
root=$1; user=$2; shift 2
exec chroot --userspec="$user" "$root" /usr/bin/env -i "$@"
"""


def missing() -> list[str]:
    """What stands in the way here."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    return lacking if os.geteuid() == 0 else [*lacking, "root"]


def buildah(*arguments: str) -> str:
    """What it printed; with a store of its own, and without namespaces, which may not be had here."""
    options = ("--root", str(_STORE / "store"), "--runroot", str(_STORE / "run"))
    variables = os.environ | {"BUILDAH_ISOLATION": "chroot"}
    return ran("buildah", *options, *arguments, variables=variables).stdout.strip()


def _pip_variables() -> dict[str, str]:
    """How pip is set up here, where that is by variables."""
    return {name: value for name, value in os.environ.items() if name.startswith("PIP_")}


def _mounts() -> list[str]:
    """Files that those name, in their places."""
    named = [Path(value) for value in _pip_variables().values() if value.startswith("/")]
    folders = {path if path.is_dir() else path.parent for path in named if path.exists()}
    return [f"--volume={folder}:{folder}:ro" for folder in sorted(folders)]


def base(path: Path) -> str:
    """Makes what stands for the base of a Dockerfile: Debian's own Python on the release that the tag names."""
    name = f"docker.io/library/{stages(path)[0].one('FROM').value.split()[0]}"
    if name.split(":")[0] in buildah("images", "--format", "{{.Name}}").split():
        return name
    root = _STORE / "root"
    shutil.rmtree(root, ignore_errors=True)
    packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
    release = name.rsplit("-", 1)[1]
    ran("debootstrap", "--variant=minbase", packages, release, root)
    for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(root), "/")
    for variable, value in _pip_variables().items():
        buildah("config", "--env", f"{variable}={value}", container)
    buildah("commit", "--quiet", "--rm", container, name)
    shutil.rmtree(root)
    return name


@dataclass(frozen=True, slots=True)
class Image:
    """What is in the image, and how it is to be started."""

    root: Path
    user: str
    variables: list[str]
    argv: list[str]
    health: list[str]

    def entering(self, argv: list[str]) -> list[str]:
        """The command that runs `argv` in the image, on a root that is read-only."""
        namespace = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "image"]
        return [*namespace, str(self.root), self.user, *self.variables, *argv]


@contextmanager
def built(path: Path, *arguments: str) -> Iterator[Image]:
    """The image of a Dockerfile, for the block."""
    base(path)
    tag = f"localhost/{path.stem}"
    common = ["--pull-never", "--format", "docker", "--quiet", "--file", str(path), "--tag", tag]
    buildah("build", *common, *_mounts(), *arguments, str(ROOT))
    config = json.loads(buildah("inspect", "--type", "image", tag))["Docker"]["config"]
    container = buildah("from", "--pull-never", tag)
    try:
        root = Path(buildah("mount", container))
        argv, health = config["Entrypoint"] + config["Cmd"], config["Healthcheck"]["Test"][1:]
        yield Image(root, config["User"], config["Env"], argv, health)
    finally:
        buildah("rm", container)
        buildah("rmi", tag)
