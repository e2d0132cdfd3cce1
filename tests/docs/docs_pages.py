"""Documentation pages as programs: their blocks, and a shell user who works through them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from outrider.config import cache_dir

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))

_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Marks of blocks that no test runs; the words around them say so, too.
UNRUN = {"needs-gpu"}
_PORTS = (8000, 30000)
#: How long a command may take on a busy machine, and a server to stop.
_END_S, _STOP_S = 600.0, 60.0


class Block(NamedTuple):
    """One fenced block."""

    language: str
    mark: str
    """What follows the language; empty for most."""
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(kind, mark.strip(), text) for kind, mark, text in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Reader:
    """Does what a page says, block by block, in an empty folder. Servers that it starts are stopped by `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {str(port): str(_free_port()) for port in _PORTS}
        self._servers: list[subprocess.Popen[bytes]] = []
        self.printed = ""
        """By the last block that was typed into Python's prompt."""
        paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # A cache of its own: what pages measure and train must not replace the user's.
        (folder / "cache").mkdir()
        (folder / "cache" / "models").symlink_to(cache_dir() / "models")
        self._environment = os.environ | {"PATH": paths, "OUTRIDER_CACHE": str(folder / "cache")}

    def follow(self, block: Block) -> None:
        """Do what one block says."""
        text = re.sub("|".join(self._ports), lambda match: self._ports[match[0]], block.text)
        if block.mark.startswith("file="):
            path = self._folder / block.mark.removeprefix("file=")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif block.language == "python":
            self._run([sys.executable, "-c", text])
        elif block.language == "asyncio":
            self.printed = self._run([sys.executable, "-m", "asyncio"], text)
        elif block.language == "sh" and block.mark not in UNRUN:
            for command in _commands(text):
                if re.match(r"outrider (serve|engine)\b", command):
                    self._start(command)
                else:
                    self._run(["bash", "-euo", "pipefail", "-c", command.replace("curl ", "curl --fail-with-body ")])

    def _run(self, command: list[str], typed: str = "") -> str:
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            input=typed,
            capture_output=True,
            text=True,
            timeout=_END_S,
            check=False,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _start(self, command: str) -> None:
        (port,) = re.findall(r"--port (\d+)", command)
        with (self._folder / f"{port}.log").open("wb") as log:
            self._servers.append(
                subprocess.Popen(command.split(), cwd=self._folder, env=self._environment, stdout=log, stderr=log)
            )
        ends_at_s = time.monotonic() + _END_S
        while not _answers(f"http://127.0.0.1:{port}/ready"):
            is_alive = self._servers[-1].poll() is None and time.monotonic() < ends_at_s
            assert is_alive, (self._folder / f"{port}.log").read_text(encoding="utf-8")
            time.sleep(0.2)

    def close(self) -> None:
        """Stop the servers as Ctrl-C does, the last one first; all end well, or say that it was Ctrl-C."""
        for server in reversed(self._servers):
            server.send_signal(signal.SIGINT)
        codes = [server.wait(_STOP_S) for server in reversed(self._servers)]
        assert set(codes) <= {0, 130}, codes


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _commands(text: str) -> Iterator[str]:
    """One a line; a line goes on while a quote is open."""
    command = ""
    for line in text.splitlines():
        command += line
        if command.count("'") % 2 == 0:
            yield command.strip()
            command = ""
        else:
            command += "\n"
