"""One worker process as its parent sees it: started with its setup, asked things, stopped."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from outrider.workers.channel import Answer, Channel
from outrider.workers.member import Setup


class WorkerProcess:
    """Runs until `ended`, and not longer than we do. Its standard input is the channel."""

    def __init__(self, index: int, process: asyncio.subprocess.Process, channel: Channel, answer: Answer) -> None:
        self.index = index
        self._process = process
        self._channel = channel
        self._reading = asyncio.create_task(channel.run(answer), name=f"channel of worker {index}")
        self._ready_at_s: float | None = None

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.index} pid {self.pid} {'ready' if self.is_ready else 'not ready'}>"

    @classmethod
    async def start(cls, setup: Setup, answer: Answer) -> WorkerProcess:
        """In a session of its own, so that signals of the terminal reach the parent alone."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "outrider.workers.worker", stdin=theirs.fileno(), start_new_session=True
            )
        channel = await Channel.over(ours)
        channel.say(setup.to_line())
        return cls(setup.index, process, channel, answer)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """It has not ended."""
        return self._process.returncode is None

    @property
    def is_ready(self) -> bool:
        """It has said so, and has not ended."""
        return self._ready_at_s is not None and self.is_alive

    def becomes_ready(self) -> None:
        """It said that it listens; how long it stays up counts from here."""
        self._ready_at_s = time.monotonic()

    async def ended(self) -> tuple[int, float]:
        """The exit code, negative for a signal, and how long it served, in seconds."""
        code = await self._process.wait()
        lived_s = 0.0 if self._ready_at_s is None else time.monotonic() - self._ready_at_s
        await asyncio.wait([self._reading])
        return code, lived_s

    async def ask(self, order: str, given: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any] | None:
        """The worker's answer; None when none comes in time."""
        try:
            async with asyncio.timeout(timeout_s):
                found: Mapping[str, Any] = await self._channel.ask(order, given)
                return found
        except (TimeoutError, ConnectionError):
            return None

    def tell(self, order: str, given: Mapping[str, Any]) -> None:
        """A worker that has ended needs no news."""
        with suppress(ConnectionError):
            self._channel.tell(order, given)

    def signal(self, number: int) -> None:
        """Send it the signal, unless it has ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
