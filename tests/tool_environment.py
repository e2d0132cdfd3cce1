"""Tools in an environment of their own, kept in the user's cache under the hash of their lock."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outrider.config import cache_dir

#: Written last; a folder without it is one whose build was cut off.
_COMPLETE = ".complete"
_PIP_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """The packages of one lock, which lists all of them, and the programs that they bring."""

    name: str
    lock: Path
    timeout_s: float = 170.0
    """Of one run of a program."""

    @property
    def folder(self) -> Path:
        """Whether it is there yet or not."""
        return cache_dir() / f"{self.name}-{hashlib.sha256(self.lock.read_bytes()).hexdigest()[:12]}"

    @property
    def is_ready(self) -> bool:
        return (self.folder / _COMPLETE).is_file()

    def build(self) -> None:
        """Make the environment when it is missing. OSError when it cannot be had."""
        if not self.is_ready:
            print(f"installing tools of {self.name} into {self.folder}", flush=True)
            venv.create(self.folder, with_pip=True, clear=True)
            self.pip("install", "--no-deps", "--requirement", str(self.lock))
            (self.folder / _COMPLETE).touch()

    def pip(self, *arguments: str) -> None:
        command = [str(self.folder / "bin" / "python"), "-m", "pip", *arguments[:1], "--quiet", *arguments[1:]]
        options = ("--disable-pip-version-check", "--retries", "1", "--timeout", "15")
        try:
            subprocess.run([*command, *options], check=True, timeout=_PIP_TIMEOUT_S)
        except subprocess.SubprocessError as error:
            raise OSError(f"pip {' '.join(arguments[:2])} failed: {error}") from error

    async def run(
        self, *command: str, cwd: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """A program of the environment: exit status, and all that it printed."""
        name, *arguments = command
        clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        process = await asyncio.create_subprocess_exec(
            str(self.folder / "bin" / name), *arguments, cwd=cwd, env=clean | dict(variables or {}),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self.timeout_s):
                out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, out.decode(errors="replace")
