"""Tools of other makers in an environment of their own, kept in the user's cache under the hash of their lock."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Mapping
from pathlib import Path

from outrider.config import cache_dir

LOCK = Path(__file__).with_name("requirements.lock")
#: Written last; a folder without it is one whose build was cut off.
_COMPLETE = ".complete"
_TIMEOUT_S = 170.0
_PIP_TIMEOUT_S = 300.0


def folder() -> Path:
    """Of the environment, whether it is there yet or not."""
    return cache_dir() / f"conformance-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"


def is_ready() -> bool:
    return (folder() / _COMPLETE).is_file()


def build() -> None:
    """Make the environment when it is missing, and fetch openai's own tests."""
    if not is_ready():
        print(f"installing tools of conformance into {folder()}", flush=True)
        venv.create(folder(), with_pip=True, clear=True)
        _pip("install", "--no-deps", "--requirement", str(LOCK))
        (folder() / _COMPLETE).touch()
    openai_tests()


def openai_tests() -> Path:
    """The source of the locked version of openai, which has its tests, unpacked. OSError when it cannot be had."""
    version = next(line for line in LOCK.read_text(encoding="utf-8").splitlines() if line.startswith("openai=="))
    name = version.replace("==", "-")
    unpacked = cache_dir() / "conformance-sources" / name
    if not unpacked.is_dir():
        archives = folder() / "sources"
        _pip("download", "--no-deps", "--no-binary", "openai", "--dest", str(archives), version)
        with tarfile.open(archives / f"{name}.tar.gz") as archive:
            archive.extractall(unpacked.parent, filter="data")
    return unpacked


def _pip(*arguments: str) -> None:
    command = [str(folder() / "bin" / "python"), "-m", "pip", *arguments[:1], "--quiet", *arguments[1:]]
    options = ("--disable-pip-version-check", "--retries", "1", "--timeout", "15")
    try:
        subprocess.run([*command, *options], check=True, timeout=_PIP_TIMEOUT_S)
    except subprocess.SubprocessError as error:
        raise OSError(f"pip {' '.join(arguments[:2])} failed: {error}") from error


async def run(*command: str, cwd: Path | None = None, variables: Mapping[str, str] | None = None) -> tuple[int, str]:
    """A program of the environment: exit status, and all that it printed."""
    name, *arguments = command
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    process = await asyncio.create_subprocess_exec(
        str(folder() / "bin" / name), *arguments, cwd=cwd, env=clean | dict(variables or {}),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode(errors="replace")


if __name__ == "__main__":
    try:
        build()
    except OSError as error:
        sys.exit(f"the tools of conformance cannot be had: {error}")
