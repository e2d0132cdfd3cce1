"""Runs a call without a client: what a run of the store is about."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from outrider.config import Config
from outrider.dispatch.call import Call
from outrider.dispatch.dispatcher import Dispatcher
from outrider.dispatch.keys import KeyRing
from outrider.dispatch.retry import answered
from outrider.dispatch.run import Run
from outrider.errors import APIError, ConfigError, StoreUnavailable, Unauthorized
from outrider.gateway.calls import Arrival, read_call
from outrider.gateway.jobs import Desk, Job
from outrider.gateway.relay import check_is_stream, copy_stream
from outrider.runs.book import RunBook
from outrider.runs.record import Ending, Record
from outrider.runs.work import Work, Writer
from outrider.runtimes.dialects import dialect_of
from outrider.runtimes.pool import Pool
from outrider.sse import SSEDecoder
from outrider.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from outrider.runs.store import RunStore

#: Numbers of events are ours to give.
_ID_LINE = re.compile(rb"^id(?::[^\r\n]*)?(?:\r\n|\n|\r)", re.MULTILINE)

#: Between two looks at a run that another process of this machine may have.
_SHARED_POLL_S = (0.05, 0.5)


class Background:
    """The book of runs over a store, and its worker."""

    def __init__(self, store: RunStore, dispatcher: Dispatcher, pool: Pool, keys: KeyRing, config: Config) -> None:
        self._dispatcher = dispatcher
        self._keys = keys
        self._limits = config.admission
        self.book = RunBook(store, config.runs, self)
        self.desk = Desk(pool, self.book)

    async def running(self, _app: object) -> AsyncIterator[None]:
        """Around the life of the gateway. ConfigError when the store cannot be used."""
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self.book.looked_after())
            except StoreUnavailable as error:
                raise ConfigError(f"runs.url: {error.message}") from error
            yield

    def shown_in(self, metrics: Metrics) -> None:
        """How the book stands, on every scrape."""
        metrics.watch_runs(
            num_open=lambda: self.book.num_open,
            num_unsaved=lambda: len(self.book.unsaved),
            is_healthy=lambda: self.book.state == "ok",
        )

    async def prepare(self, record: Record) -> Work:
        """Read the request anew, by the keys that are in force now. Unauthorized, InvalidRequest."""
        key = self._keys.named(record.key)
        if key is None and (record.key is not None or not self._keys.is_open):
            raise Unauthorized("the API key of the run is not in force any more")
        arrival = Arrival(record.path, record.headers, record.request_id, key, time.monotonic())
        call = read_call(arrival, record.body, self._limits)
        return self.work(await self.desk.job(_in_time(call, record.deadline_at), record.id))

    def error_event(self, record: Record, error: APIError) -> bytes:
        """In the dialect of the run's route."""
        return dialect_of(record.path).error_event(error)

    def work(self, job: Job) -> Work:
        """Admit it as any request, then keep what comes."""

        async def work(writer: Writer) -> Ending:
            async with self._dispatcher.run(job.call) as run:
                await writer.begin()
                if job.call.is_stream:
                    return await answered(run, lambda: _stream(job, run, writer))
                raw, _ = await answered(run, lambda: job.body(run))
            return Ending("completed", [b"data: " + b"\ndata: ".join(raw.splitlines()) + b"\n\n"], answer=raw)

        return work


def opened(
    config: Config, dispatcher: Dispatcher, pool: Pool, keys: KeyRing, *, is_shared: bool = False
) -> Background | None:
    """None where no store is configured; what talks to databases is loaded only where one is. ConfigError.

    `is_shared`: runs of other processes are asked for here as often as our own.
    """
    if config.runs.url is None:
        return None
    from outrider.runs.store import RunStore

    found = Background(RunStore(config.runs), dispatcher, pool, keys, config)
    if is_shared:
        found.book.poll_s = _SHARED_POLL_S
    return found


@dataclass(slots=True)
class _Kept:
    """The sink of a stream that is stored; the last events are held, since they are stored with the run's end."""

    writer: Writer
    has_begun: bool = False
    last: list[bytes] = field(default_factory=list)

    async def write(self, data: bytes, *, is_last: bool) -> None:
        self.has_begun = True
        events = _events(data)
        if is_last:
            self.last = events
        elif events:
            await self.writer.write(events)

    async def fail(self, data: bytes) -> None:
        self.last = _events(data)


def _events(data: bytes) -> list[bytes]:
    """Without comments, which are no news."""
    return [_ID_LINE.sub(b"", event.raw) for event in SSEDecoder().feed(data) if event.data is not None]


async def _stream(job: Job, run: Run, writer: Writer) -> Ending:
    """A failure before the first event is raised, a later one is the last event."""
    relay, sink = job.relay(run), _Kept(writer)
    async with run.open() as answer:
        check_is_stream(answer)
        await copy_stream(answer, relay, sink)
    if relay.failure is not None:
        return Ending("failed", sink.last, error=relay.failure.to_wire()["error"])
    return Ending("completed", sink.last, answer=relay.answer)


def _in_time(call: Call, deadline_at: float | None) -> Call:
    """With the deadline that the run had from the beginning."""
    deadline_s = None if deadline_at is None else time.monotonic() + deadline_at - time.time()
    return replace(call, claim=call.claim._replace(deadline_s=deadline_s))


def numbered(events: list[tuple[int, bytes]]) -> bytes:
    """Events with their numbers as ids, by which a client resumes."""
    return b"".join(b"id: %d\n%b" % one for one in events)


def to_wire(record: Record) -> dict[str, object]:
    """A run as `/outrider/runs/{id}` shows it, but for its answer."""
    times: Mapping[str, float | None] = {
        "created_at": record.created_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "expires_at": record.expires_at,
    }
    return {
        "id": record.id,
        "object": "outrider.run",
        "status": record.status,
        "route": record.path,
        "request_id": record.request_id,
        **times,
        "num_events": record.num_events,
        "error": record.error,
    }
