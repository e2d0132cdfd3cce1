"""One child process that leaves nothing behind: own group, an open standard input, its last lines of output."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from outrider.errors import LaneFailed
from outrider.runtimes.launch import Launch

logger = logging.getLogger(__name__)

_LOG_LINES = 200
_MAX_LINE_BYTES = 16 * 1024
#: A log file over this size is put aside before the next start; the one before it goes.
_MAX_LOG_BYTES = 16 * 1024 * 1024
#: How long output may keep coming after the process has ended, from grandchildren that hold its pipe.
_LAST_OUTPUT_S = 1.0


class ChildProcess:
    """A running process. Its standard input ends when we do, which is its sign to exit."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Log) -> None:
        self._name = name
        self._process = process
        self._log = log
        self._reader = asyncio.create_task(self._read_output(), name=f"log of {name}")

    def __repr__(self) -> str:
        return f"<ChildProcess {self._name} pid {self.pid} exit {self._process.returncode}>"

    @classmethod
    async def start(cls, name: str, launch: Launch, log: Log) -> ChildProcess:
        """LaneFailed when the program cannot be started. Lines of output are appended to `log`."""
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=launch.environment,
                start_new_session=True,
            )
        except OSError as error:
            raise LaneFailed(f"{launch.argv[0]} cannot be started: {error.strerror}") from error
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ended(self) -> None:
        """Return as soon as the process has ended."""
        await self._process.wait()

    async def wait(self) -> int:
        """The exit code, once the process has ended and its output is read."""
        code = await self._process.wait()
        await asyncio.wait([self._reader], timeout=_LAST_OUTPUT_S)
        return code

    async def stop(self, grace_s: float) -> None:
        """Ask by the end of standard input and SIGTERM, wait, then kill the whole group."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            logger.warning("lane %s did not stop within %g s and is killed", self._name, grace_s)
        finally:
            self.kill()
        await self._process.wait()
        self._reader.cancel()
        await asyncio.wait([self._reader])

    def kill(self) -> None:
        """SIGKILL to the group, at once; children that outlived the process go with it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _read_output(self) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        line = b""
        while data := await stream.read(_MAX_LINE_BYTES):
            *lines, line = (line + data).split(b"\n")
            for one in lines:
                self._keep(one)
            if len(line) > _MAX_LINE_BYTES:
                self._keep(line)
                line = b""
        if line:
            self._keep(line)

    def _keep(self, line: bytes) -> None:
        text = line.decode("utf-8", errors="replace").rstrip()
        self._log.append(text)
        logger.debug("lane %s: %s", self._name, text)


class Log:
    """What a process wrote: its last lines, and all of it in a file where there is one."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._file: IO[str] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def begin(self) -> None:
        """A process starts: no line of the one before it is kept, but for the file."""
        self._lines.clear()
        self.close()
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self.path.stat().st_size > _MAX_LOG_BYTES:
                self.path.replace(self.path.with_suffix(".old"))
            self._file = self.path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            logger.warning("no log file %s: %s", self.path, error.strerror)

    def append(self, line: str) -> None:
        """Keep a line in memory, and in the file where there is one."""
        self._lines.append(line)
        if self._file is None:
            return
        try:
            self._file.write(line + "\n")
        except OSError as error:
            logger.warning("the log file %s goes no further: %s", self.path, error.strerror)
            self.close()

    def close(self) -> None:
        """Close the file; the lines in memory stay."""
        if self._file is not None:
            with suppress(OSError):  # what could not be written is tried again
                self._file.close()
            self._file = None
