"""The parent of the workers: starts them, gives them news and orders, starts again those that end, stops all."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import Counter, Gauge
from prometheus_client.exposition import generate_latest

from outrider.app import Gateway
from outrider.errors import SetupError
from outrider.runtimes.lane import Lane
from outrider.runtimes.supervisor import Backoff
from outrider.workers.member import LaneNews, Setup
from outrider.workers.process import WorkerProcess

logger = logging.getLogger(__name__)

#: How long an order may take to be carried out, and figures to be told.
_ORDER_S, _PAGE_S = 5.0, 2.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a worker may take before it is killed, in seconds."""

    start_s: float = 60.0
    """To listen."""
    hang_s: float = 20.0
    """To answer while it serves. It is asked twice, for half of that each, as we may have been stopped ourselves."""
    end_s: float = 15.0
    """To end, beyond the grace of its requests: lanes are told, runs are stored."""


_BOUNDS = Bounds()


class Crew:
    """The workers of one gateway. `gateway` is the parent's own: it has the lanes, and serves nobody."""

    def __init__(self, gateway: Gateway, setup: Setup, bounds: Bounds = _BOUNDS) -> None:
        """`setup` is the first worker's; the others' differ in their number."""
        self._bounds = bounds
        self._gateway = gateway
        self._setup = setup
        self._lanes: Sequence[Lane] = [one.lane for one in gateway.supervisors]
        self._drained: set[str] = set()
        self._workers: dict[int, WorkerProcess] = {}
        self._served: dict[int, asyncio.Event] = {i: asyncio.Event() for i in range(setup.count)}
        """Set once the worker of that number has been ready for the first time."""
        self._problems: dict[int, str] = {}
        """By worker, why its last process ended."""
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self.url = ""
        registry = gateway.metrics.registry
        self._restarts = Counter("outrider_worker_restarts", "Restarts of workers", ["worker"], registry=registry)
        self._up = Gauge("outrider_worker_up", "1 while the worker listens", ["worker"], registry=registry)
        for i in range(setup.count):
            self._restarts.labels(str(i))
            self._up.labels(str(i)).set_function(partial(self._is_up, i))

    def __repr__(self) -> str:
        return f"<Crew {' '.join(map(repr, self._workers.values()))}>"

    async def start(self) -> None:
        """Return when all workers listen. SetupError when one cannot.

        The first alone: it makes the files that all share.
        """
        for lane in self._lanes:
            lane.on_change.add(partial(self._tell_of, lane))
        for numbers in ([0], range(1, self._setup.count)):
            begun = {i: asyncio.create_task(self._keep(i), name=f"worker {i}") for i in numbers}
            self._tasks += begun.values()
            for i, task in begun.items():
                served = asyncio.create_task(self._served[i].wait())
                await asyncio.wait([task, served], return_when=asyncio.FIRST_COMPLETED)
                served.cancel()
                if task.done():
                    task.result()  # it raises: workers are kept for ever

    async def _keep(self, index: int) -> None:
        backoff = Backoff()
        while True:
            try:
                code, lived_s = await self._live_once(index)
            except OSError as error:
                code, lived_s = 1, 0.0
                self._problems[index] = f"worker {index} cannot be started: {error.strerror}"
            if self._stopping.is_set():
                return
            problem = self._problems.pop(index, None)
            if not self._served[index].is_set():
                raise SetupError(problem or f"worker {index} ended with exit code {code} before it listened")
            pause_s = backoff.after(lived_s)
            why = "" if problem is None else f": {problem}"
            logger.warning("worker %d ended with exit code %d%s; next start in %.1f s", index, code, why, pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
                    return
            self._restarts.labels(str(index)).inc()

    async def _live_once(self, index: int) -> tuple[int, float]:
        """From start to end: the exit code, and how long it served."""
        news = {lane.name: LaneNews.of(lane) for lane in self._lanes}
        drained = frozenset(self._drained)
        update = {"index": index, "lanes": news, "drained": drained}
        worker = await WorkerProcess.start(self._setup.model_copy(update=update), self._answer)
        self._workers[index] = worker
        # What happened while it was made.
        for name in self._drained ^ drained:
            worker.tell("drain", {"lane": name, "is_draining": name in self._drained})
        for lane in self._lanes:
            if LaneNews.of(lane) != news[lane.name]:
                self._tell_of(lane)
        if self._stopping.is_set():
            worker.signal(signal.SIGTERM)
        late = asyncio.get_running_loop().call_later(self._bounds.start_s, _kill_unless_ready, worker)
        watch = asyncio.create_task(self._kill_when_hung(worker), name=f"watch of worker {index}")
        try:
            return await worker.ended()
        finally:
            late.cancel()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _kill_when_hung(self, worker: WorkerProcess) -> None:
        """Its connections would wait for ever, and new ones that the kernel gives it."""
        half_s, num_missed = self._bounds.hang_s / 2, 0
        while num_missed < 2:
            await asyncio.sleep(half_s / 2)
            if worker.is_ready:
                answer = await worker.ask("alive", {}, half_s)
                if self._stopping.is_set():
                    return  # it has the grace of all
                num_missed = num_missed + 1 if answer is None else 0
        self._problems[worker.index] = "it did not answer and was killed"
        worker.signal(signal.SIGKILL)

    async def _answer(self, what: str, given: Mapping[str, Any]) -> Any:
        """What workers ask of us."""
        match what:
            case "ready":
                self.url = given["url"]
                self._workers[given["worker"]].becomes_ready()
                self._served[given["worker"]].set()
            case "problem":
                self._problems[given["worker"]] = given["message"]
            case "every":
                return await self.every(given["order"], given["with"])
        return None

    async def every(self, order: str, given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Have all workers carry out an order. One that does not answer has a `problem`, or its figures are missing.

        A worker that starts may have read its files before they changed: it is asked too, unless it is for figures.
        """
        if order == "drain":
            (self._drained.add if given["is_draining"] else self._drained.discard)(given["lane"])
        is_page = order == "page"
        workers = [one for one in self._workers.values() if (one.is_ready if is_page else one.is_alive)]
        timeout_s = _PAGE_S if is_page else _ORDER_S
        found = await asyncio.gather(*(one.ask(order, given, timeout_s) for one in workers))
        if is_page:
            return [*(one for one in found if one is not None), {"page": self._page()}]
        return [
            {"problem": f"worker {one.index} has not done it"} if answer is None else answer
            for one, answer in zip(workers, found, strict=True)
        ]

    def _page(self) -> str:
        """The parent's own figures."""
        names = ["outrider_worker_up", "outrider_worker_restarts_total", "outrider_lane_restarts_total"]
        return generate_latest(self._gateway.metrics.registry.restricted_registry(names)).decode()

    def _is_up(self, index: int) -> bool:
        return index in self._workers and self._workers[index].is_ready

    def _tell_of(self, lane: Lane) -> None:
        news = {"lane": lane.name, "news": LaneNews.of(lane).model_dump(mode="json")}
        for worker in self._workers.values():
            worker.tell("lane", news)

    def stop_soon(self) -> None:
        """Have all end their requests and themselves; said again, at once."""
        self._stopping.set()
        for worker in self._workers.values():
            worker.signal(signal.SIGTERM)

    async def stop(self) -> None:
        """Return when all have ended; those that do not in time are killed."""
        if not self._stopping.is_set():
            self.stop_soon()
        grace_s = self._setup.config.server.shutdown_grace_s + self._bounds.end_s
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=grace_s)
        if late:
            logger.warning("%d workers did not stop within %g s and are killed", len(late), grace_s)
            for worker in self._workers.values():
                worker.signal(signal.SIGKILL)
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _kill_unless_ready(worker: WorkerProcess) -> None:
    if not worker.is_ready:
        worker.signal(signal.SIGKILL)
