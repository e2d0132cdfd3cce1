"""Relays a lane's answer to the client: the head is held until there is something to say, then bytes flow."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain

from aiohttp import web

from outrider.dispatch.run import Run
from outrider.errors import APIError, LaneFailed
from outrider.gateway.attach import passed_headers, take_stats, with_report, without_stats
from outrider.gateway.stream import StreamRelay
from outrider.runtimes.client import LaneAnswer
from outrider.runtimes.dialects import dialect_of
from outrider.runtimes.protocol import read_answers

#: How long a client that does not read is waited for when its stream has failed.
_LAST_EVENT_S = 1.0
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


async def relay_body(run: Run) -> web.Response:
    """The whole answer with the report in it. Raises what the lane reports as failed, and LaneFailed."""
    async with run.open() as answer:
        async with run.within_deadline():
            raw = await answer.body()
        run.saw_event()
    dialect, bodies = dialect_of(run.call.path), read_answers(raw)
    for body in bodies:
        dialect.raise_failure(body)
    found = [details for body in bodies if (details := dialect.details(body)) is not None]
    take_stats(run, list(chain.from_iterable(found)) if found else None)
    counts = [count for body in bodies if (count := dialect.completion_tokens(body)) is not None]
    run.outcome.num_completion_tokens = sum(counts) if counts else None
    shown = with_report(run, without_stats(run, raw, bodies[0]) or raw)
    run.succeed()
    headers = {"Content-Type": "application/json"} | passed_headers(answer.headers)
    return web.Response(body=shown, headers=headers)


async def relay_stream(request: web.Request, run: Run) -> web.StreamResponse:
    """Events as they come. A failure before the first one is raised, a later one is the stream's last event."""
    async with run.open() as answer:
        _check_is_stream(answer)
        headers = _STREAM_HEADERS | passed_headers(answer.headers)
        client = _Client(request, web.StreamResponse(headers=headers), StreamRelay(run))
        await client.copy(answer)
    await client.response.write_eof()
    return client.response


@dataclass(frozen=True, slots=True)
class _Client:
    """Who gets a stream."""

    request: web.Request
    response: web.StreamResponse
    relay: StreamRelay

    async def copy(self, answer: LaneAnswer) -> None:
        """One write per packet of the lane, until the end or the first failure."""
        relay = self.relay
        try:
            async with relay.run.within_deadline(), aclosing(answer.packets()) as packets:
                async for events in packets:
                    await self._send(relay.feed(events))
                    if relay.failure is not None:
                        return
            await self._send(relay.end())
        except APIError as error:
            await self._send(relay.fail(error))
        if relay.failure is None:
            relay.run.succeed()

    async def _send(self, data: bytes) -> None:
        """Write, preceded by the head when it is the first. A failure before the head is raised."""
        if self.relay.failure is not None:
            await self._tell(self.relay.failure, data)
            return
        if not data:
            return
        if not self.response.prepared:
            await self.response.prepare(self.request)
        await self.response.write(data)

    async def _tell(self, failure: APIError, data: bytes) -> None:
        """The failure as the last event, after `data`; without the client's reading, the connection is its end."""
        if not self.response.prepared:
            raise failure
        self.relay.run.fail(failure)
        event = dialect_of(self.relay.run.call.path).error_event(failure)
        try:
            async with asyncio.timeout(_LAST_EVENT_S):
                await self.response.write(data + event)
                await self.response.write_eof()
        except TimeoutError:
            if self.request.transport is not None:
                self.request.transport.abort()


def _check_is_stream(answer: LaneAnswer) -> None:
    kind = answer.headers.get("Content-Type", "none")
    if not kind.startswith("text/event-stream"):
        raise LaneFailed(f"the lane answered a stream with content type {kind}")
