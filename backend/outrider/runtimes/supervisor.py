"""Keeps the process of one lane alive: starts it, waits until it serves, restarts it with back-off, stops it."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.errors import LaneFailed, SetupError
from outrider.runtimes.diagnosis import cause_of, guess_of
from outrider.runtimes.lane import Lane
from outrider.runtimes.launch import HOST, STOP_GRACE_S, Launch
from outrider.runtimes.process import ChildProcess, Log
from outrider.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

_REASON_LINES = 5
#: A guarded process needs a moment after its command's own grace.
_GUARD_S = 1.0


@dataclass(slots=True)
class Backoff:
    """How long to wait before the next start: doubling, and from the beginning again after a healthy life."""

    first_s: float = 0.5
    limit_s: float = 30.0
    healthy_s: float = 60.0
    """A life this long forgets the failures before it."""
    _next_s: float = field(default=0.0, init=False)

    def after(self, lived_s: float) -> float:
        """Seconds to wait after a process that served for `lived_s`."""
        if lived_s >= self.healthy_s or self._next_s == 0:
            self._next_s = self.first_s
        delay_s = min(self._next_s, self.limit_s)
        self._next_s = delay_s * 2
        return delay_s


class Supervisor:
    """One lane's process, for as long as `run` runs; cancelling it stops the process."""

    def __init__(
        self,
        lane: Lane,
        launch: Callable[[int], Launch],
        metrics: Metrics,
        *,
        ready_timeout_s: float,
        backoff: Backoff | None = None,
        log: Log | None = None,
    ) -> None:
        """`launch` gives what to start for a port; it may raise SetupError."""
        self.lane = lane
        self.log = Log() if log is None else log
        self._launch = launch
        self._metrics = metrics
        self._ready_timeout_s = ready_timeout_s
        self._backoff = backoff or Backoff()
        self.process: ChildProcess | None = None
        """The process that runs now; None between two."""

    def __repr__(self) -> str:
        return f"<Supervisor of {self.lane!r}: {self.process!r}>"

    async def run(self) -> None:
        """Start, watch, restart; until cancelled, which stops the process in stages first."""
        try:
            while True:
                lived_s, reason = await self._live_once()
                delay_s = self._backoff.after(lived_s)
                where = f"; all that it wrote is in {self.log.path}" if self.log.path and len(self.log) else ""
                logger.warning("lane %s: %s; next start in %.1f s%s", self.lane.name, reason, delay_s, where)
                await asyncio.sleep(delay_s)
                self._metrics.lane_restarted(self.lane.name)
        finally:
            self.log.close()
            self.lane.stops()

    def kill(self) -> None:
        """End the process at once; for an operator who does not want to wait."""
        if self.process is not None:
            self.process.kill()

    async def _live_once(self) -> tuple[float, str]:
        """One process from start to end: how long it served, in seconds, and why it ended."""
        self.log.begin()
        port = _free_port()
        try:
            process = await ChildProcess.start(self.lane.name, self._launch(port), self.log)
        except (LaneFailed, SetupError) as error:
            self.lane.fails(error.message, is_gone=True)
            return 0.0, error.message
        self.process = process
        self.lane.starts(f"http://{HOST}:{port}")
        try:
            lived_s, reason = await self._watch(process)
            self.lane.fails(reason, is_gone=True)
            return lived_s, reason
        except asyncio.CancelledError:
            self.lane.stops()  # no new requests while the process ends
            raise
        finally:
            await process.stop(STOP_GRACE_S + _GUARD_S)
            self.process = None

    async def _watch(self, process: ChildProcess) -> tuple[float, str]:
        ended = asyncio.create_task(process.ended())
        ready = asyncio.create_task(self.lane.wait_until_ready())
        try:
            await asyncio.wait([ended, ready], timeout=self._ready_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and not ready.done():
                return 0.0, self._why(f"not ready within {self._ready_timeout_s:g} s")
            ready_at_s = time.monotonic() if ready.done() else None
            await ended
            lived_s = 0.0 if ready_at_s is None else time.monotonic() - ready_at_s
            self.lane.fails("its process ended", is_gone=True)  # at once: what it wrote last may take a second
            code = await process.wait()
            return lived_s, self._why(f"its process ended with exit code {code}", code)
        finally:
            ended.cancel()
            ready.cancel()
            await asyncio.wait([ended, ready])

    def _why(self, what: str, code: int | None = None) -> str:
        """What happened, and why: where nothing written says it, a guess by the exit code, and the last words."""
        if (cause := cause_of(self.log)) is not None:
            return f"{what}: {cause}"
        last = [line for line in self.log if line.strip()][-_REASON_LINES:]
        parts = [part for part in (guess_of(code), " | ".join(last)) if part]
        return ": ".join([what, *parts])


def _free_port() -> int:
    """A port that was free just now; should somebody take it first, the start fails and the next takes another."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
