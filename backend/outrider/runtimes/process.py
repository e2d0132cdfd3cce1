"""One child process that leaves nothing behind: own group, an open standard input, its last lines of output."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from outrider.errors import LaneFailed

logger = logging.getLogger(__name__)

_LOG_LINES = 200
_MAX_LINE_BYTES = 16 * 1024
#: How long output may keep coming after the process has ended, from grandchildren that hold its pipe.
_LAST_OUTPUT_S = 1.0


class ChildProcess:
    """A running process. Its standard input ends when we do, which is its sign to exit."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: deque[str]) -> None:
        self._name = name
        self._process = process
        self._log = log
        self._reader = asyncio.create_task(self._read_output(), name=f"log of {name}")

    def __repr__(self) -> str:
        return f"<ChildProcess {self._name} pid {self.pid} exit {self._process.returncode}>"

    @classmethod
    async def start(cls, name: str, argv: Sequence[str], log: deque[str]) -> ChildProcess:
        """LaneFailed when the program cannot be started. Lines of output are appended to `log`."""
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise LaneFailed(f"{argv[0]} cannot be started: {error.strerror}") from error
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

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


def new_log() -> deque[str]:
    """The last lines of a process's output."""
    return deque(maxlen=_LOG_LINES)
