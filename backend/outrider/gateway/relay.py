"""Relays a lane's answer to the client: the head is held until there is something to say, then bytes flow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from aiohttp import web

from outrider.dispatch.run import Run
from outrider.errors import APIError, LaneFailed
from outrider.gateway.attach import passed_headers, plan_headers, take_stats, with_report
from outrider.gateway.boundary import ALWAYS_HEADERS
from outrider.runtimes.client import LaneAnswer
from outrider.runtimes.dialects import dialect_of
from outrider.runtimes.protocol import read_answers
from outrider.sse import Event

#: How long a client that does not read is waited for when its stream has failed.
_LAST_EVENT_S = 1.0
STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Relay(Protocol):
    """Turns a lane's events into a client's bytes."""

    run: Run

    @property
    def failure(self) -> APIError | None:
        """Why the stream ends early; the bytes before it have been given."""

    @property
    def is_over(self) -> bool:
        """The lane's stream came to its own end."""

    @property
    def answer(self) -> bytes | None:
        """The whole answer, where there is one object."""

    def feed(self, events: Iterable[Event]) -> bytes:
        """Events of the lane to bytes for the client."""

    async def settle(self) -> bytes:
        """What is to be given after something that takes time."""

    def end(self) -> bytes:
        """The lane's stream is over, which is a failure when it came too early."""

    def fail(self, error: APIError) -> bytes:
        """Nothing more will come: what was held back."""

    def error_event(self, error: APIError) -> bytes:
        """How a failure is told once the head is out."""


class Sink(Protocol):
    """Where a stream goes."""

    @property
    def has_begun(self) -> bool:
        """What comes before is a failure of the whole, what comes after is told in the stream."""

    async def write(self, data: bytes, *, is_last: bool) -> None:
        """On to the client; returns when there is room for more."""

    async def fail(self, data: bytes) -> None:
        """The last bytes of a stream that has failed."""


async def whole_body(run: Run) -> tuple[bytes, Mapping[str, str]]:
    """The whole answer with the report in it, and headers. Raises what the lane reports as failed, and LaneFailed.

    The run has not succeeded yet: that is for the caller to say.
    """
    async with run.open() as answer:
        with run.within_deadline():
            raw = await answer.body()
        run.saw_event()
    dialect, bodies = dialect_of(run.call.path), read_answers(raw)
    for body in bodies:
        dialect.raise_failure(body)
    found = [details for body in bodies if (details := dialect.details(body)) is not None]
    take_stats(run, list(chain.from_iterable(found)) if found else None)
    counts = [count for body in bodies if (count := dialect.completion_tokens(body)) is not None]
    run.outcome.num_completion_tokens = sum(counts) if counts else None
    run.outcome.text = dialect.text(bodies[0])
    return with_report(run, raw, bodies[0]), passed_headers(answer.headers)


async def relay_stream(request: web.Request, relay: Relay) -> web.StreamResponse:
    """Events as they come. A failure before the first one is raised, a later one is the stream's last event."""
    async with relay.run.open() as answer:
        check_is_stream(answer)
        if relay.run.hedged:  # perhaps by another lane than was first asked
            request[ALWAYS_HEADERS] = request[ALWAYS_HEADERS] | plan_headers(relay.run)
        response = web.StreamResponse(headers=STREAM_HEADERS | passed_headers(answer.headers))
        await copy_stream(answer, relay, _Client(request, response))
    await response.write_eof()
    return response


async def copy_stream(answer: LaneAnswer, relay: Relay, sink: Sink) -> None:
    """One write per packet of the lane, until the end or the first failure."""
    try:
        with relay.run.within_deadline():
            async with aclosing(answer.packets()) as packets:
                async for events in packets:
                    await _send(relay, sink, relay.feed(events))
                    if relay.failure is not None:
                        return
                    await _send(relay, sink, await relay.settle())
        await _send(relay, sink, relay.end())
    except APIError as error:
        if not relay.is_over:  # else all was told, and only the connection's end was waited for
            await _send(relay, sink, relay.fail(error))
    if relay.failure is None:
        relay.run.succeed()


async def _send(relay: Relay, sink: Sink, data: bytes) -> None:
    """A failure before the first bytes is raised, a later one told behind them."""
    failure = relay.failure
    if failure is not None:
        if not sink.has_begun:
            raise failure
        relay.run.fail(failure)
        await sink.fail(data + relay.error_event(failure))
    elif data:
        await sink.write(data, is_last=relay.is_over)


@dataclass(frozen=True, slots=True)
class _Client:
    """Who waits for a stream at the other end of the connection."""

    request: web.Request
    response: web.StreamResponse

    @property
    def has_begun(self) -> bool:
        return self.response.prepared

    async def write(self, data: bytes, *, is_last: bool) -> None:
        """Preceded by the head when these are the first bytes."""
        if not self.response.prepared:
            await self.response.prepare(self.request)
        if is_last:
            await self.response.write_eof(data)  # with the body's end in one packet
        else:
            await self.response.write(data)

    async def fail(self, data: bytes) -> None:
        """Without the client's reading, the end of the connection is what tells it."""
        try:
            async with asyncio.timeout(_LAST_EVENT_S):
                await self.response.write(data)
                await self.response.write_eof()
        except TimeoutError:
            if self.request.transport is not None:
                self.request.transport.abort()


def check_is_stream(answer: LaneAnswer) -> None:
    """LaneFailed for anything else."""
    kind = answer.headers.get("Content-Type", "none")
    if not kind.startswith("text/event-stream"):
        raise LaneFailed(f"the lane answered a stream with content type {kind}")
