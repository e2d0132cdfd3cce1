"""The engine's thread: runs steps while there is work, and passes outputs to the event loop without blocking it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count

from outrider.engine.engine import Engine, Output
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.errors import InvalidRequest, LaneUnavailable, OutriderError

log = logging.getLogger(__name__)

Stream = asyncio.Queue[Output]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What `/v1/loads` reports; a snapshot taken between steps."""

    num_running: int = 0
    num_waiting: int = 0
    num_used_tokens: int = 0
    tokens_per_s: float = 0.0
    """Over the last steps that emitted something; 0 when idle."""


@dataclass(slots=True)
class _Listener:
    """Somebody who waits for a request's outputs."""

    rid: str
    handle: str
    """The id that the engine knows the request by. Nobody has it again, while a client may reuse its own at once,
    when outputs of its last request are still on their way."""
    stream: Stream
    abort: Finish | None = None
    """How the request was aborted, or will be in a moment."""


class EngineLoop:
    """Owns the engine's thread. Commands go in through a deque, outputs come back one loop callback per step.

    The engine is made in that thread too: a second thread that had run tensor code would leave OpenMP with more
    workers than cores, whose parallel regions then sleep instead of spin (measured: a step of 28 ms takes 50).
    """

    def __init__(self, engine: Engine, thread: ThreadPoolExecutor, on_output: Callable[[Output], None]) -> None:
        self.engine = engine
        """Other threads may read what does not change: configuration, limits, tokenizer."""
        self._on_output = on_output
        self._commands: deque[Callable[[], list[Output]]] = deque()
        self._wake = threading.Event()
        self._is_stopping = False
        self._listeners: dict[str, _Listener] = {}
        """By handle."""
        self._handles: dict[str, str] = {}
        """By the request's id."""
        self._numbers = count()
        self._loop = asyncio.get_running_loop()
        self._rate = _Rate()
        self.load = EngineLoad()
        self._thread = thread
        self._running = self._loop.run_in_executor(thread, self._run)

    @classmethod
    async def start(
        cls, make_engine: Callable[[], Engine], on_output: Callable[[Output], None] = lambda output: None
    ) -> EngineLoop:
        """Make the engine and start stepping; raises what `make_engine` raises."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        try:
            engine = await asyncio.get_running_loop().run_in_executor(thread, make_engine)
        except (OutriderError, asyncio.CancelledError):
            thread.shutdown(wait=False)
            raise
        return cls(engine, thread, on_output)

    @property
    def is_alive(self) -> bool:
        """Whether its thread takes requests."""
        return not self._running.done() and not self._is_stopping

    @property
    def num_streams(self) -> int:
        """Requests that somebody still listens to."""
        return len(self._listeners)

    @asynccontextmanager
    async def generate(self, request: GenerateRequest, stream: Stream | None = None) -> AsyncIterator[Stream]:
        """A queue of outputs, the given one if there is; the request's last output has `finish`.

        Leaving early aborts the request in the engine.
        """
        if not self.is_alive:
            raise LaneUnavailable("the engine is shutting down")
        if request.rid in self._handles:
            raise InvalidRequest(f"duplicate request id {request.rid!r}", param="rid")
        handle = self._handles[request.rid] = f"{request.rid}/{next(self._numbers)}"
        listener = self._listeners[handle] = _Listener(request.rid, handle, stream or asyncio.Queue())
        try:
            self._send(lambda: self._add(replace(request, rid=handle)))
            yield listener.stream
        finally:
            # A request that has ended is unknown to the engine by now, and aborting it does nothing.
            self.abort(request.rid, Finish("abort", message="the client left", status=499))
            del self._listeners[handle], self._handles[request.rid]

    def abort(self, rid: str, finish: Finish) -> None:
        """End the request with exactly this id before the next step; unknown ids are ignored."""
        listener = self._listeners.get(self._handles.get(rid, ""))
        if listener is not None:
            listener.abort = finish
            handle = listener.handle
            self._send(lambda: [output] if (output := self.engine.abort(handle, finish)) else [])

    def abort_all(self, finish: Finish) -> None:
        """Every request that is known now ends so."""
        for listener in self._listeners.values():
            listener.abort = finish
        self._send(lambda: self._abort_all(finish))

    def abort_of(self, rid: str) -> Finish | None:
        """How a request that somebody listens to was aborted; None when it was not."""
        return self._listeners[self._handles[rid]].abort

    async def stop(self) -> None:
        """End the thread after its current step; requests that still run are told."""
        self.abort_all(Finish("abort", message="the engine is shutting down", status=503))
        self._is_stopping = True
        self._wake.set()
        await self._running
        self._thread.shutdown()

    def _send(self, command: Callable[[], list[Output]]) -> None:
        self._commands.append(command)
        self._wake.set()

    def _add(self, request: GenerateRequest) -> list[Output]:
        if request.rid in self._listeners:  # else the client left before the engine came to it
            self.engine.add(request)
        return []

    def _abort_all(self, finish: Finish) -> list[Output]:
        rids = [sequence.request.rid for sequence in self.engine.scheduler]
        return [output for rid in rids if (output := self.engine.abort(rid, finish))]

    def _run(self) -> None:
        while not self._is_stopping or self._commands:
            if not self.engine.has_work and not self._commands:
                self._wake.wait()
            self._wake.clear()
            outputs = []
            while self._commands:
                outputs.extend(self._commands.popleft()())
            outputs.extend(self.engine.expire(time.monotonic()))
            outputs.extend(self._step())
            self._update_load(outputs)
            if outputs:
                self._loop.call_soon_threadsafe(self._deliver, outputs)

    def _step(self) -> list[Output]:
        try:
            return self.engine.step()
        except Exception:  # a fault in one step must end its requests, visibly, and not the engine
            log.exception("engine step failed")
            return self._abort_all(Finish("abort", message="the engine failed on this step", status=500))

    def _update_load(self, outputs: list[Output]) -> None:
        scheduler = self.engine.scheduler
        self.load = EngineLoad(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_used_tokens=self.engine.pool.num_used_tokens,
            tokens_per_s=self._rate.update(sum(len(o.token_ids) for o in outputs), scheduler.num_running),
        )

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            self._on_output(output)
            listener = self._listeners.get(output.rid)
            if listener is not None:
                if output.finish is not None and output.finish.kind == "abort":
                    listener.abort = output.finish
                listener.stream.put_nowait(replace(output, rid=listener.rid))


class _Rate:
    """Tokens per second over a sliding two seconds."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, int]] = deque()

    def update(self, num_tokens: int, num_running: int) -> float:
        now = time.monotonic()
        self._events.append((now, num_tokens))
        while self._events and now - self._events[0][0] > 2.0:
            self._events.popleft()
        span = now - self._events[0][0]
        if num_running == 0 or span == 0:
            return 0.0
        return sum(n for _, n in self._events) / span
