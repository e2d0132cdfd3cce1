"""What the client sees of a lane's stream: the lane's bytes, with the report in the last chunk. Does no I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from outrider.dispatch.run import Run
from outrider.errors import APIError, LaneFailed
from outrider.gateway.attach import take_stats, with_report, without_stats
from outrider.runtimes.dialects import dialect_of
from outrider.runtimes.protocol import read_object
from outrider.sse import DONE, Event

#: Stores a whole response; whether it is stored. May raise what the client is to be told.
Keep = Callable[[bytes], Awaitable[bool]]


class StreamRelay:
    """Takes the lane's events, gives the client's bytes.

    The last finish chunk is held until the usage chunk, [DONE] or the end, since the statistics that belong into it
    come after it; what comes in between waits behind it. Comments before the first event wait for it too, so that
    an early failure still finds the head unsent. A route without [DONE] ends with its last finish.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._dialect = dialect_of(run.call.path)
        self._details: list[Any] = []
        self.failure: APIError | None = None
        """Why the stream ends early; the bytes before it have been given."""
        self._finish: Event | None = None
        self._behind: list[bytes] = []
        self._num_finished = 0
        self._has_begun = False
        self._is_done = False

    def feed(self, events: Iterable[Event]) -> bytes:
        """The bytes that the client gets for these events. Stops at a failure."""
        out = []
        try:
            for event in events:
                if self._is_done:
                    break
                out.append(self._take(event))
        except APIError as error:
            out.append(self.fail(error))
        return b"".join(out)

    def end(self) -> bytes:
        """The lane's stream is over, by [DONE] or without it, which is a failure."""
        if self._is_done or self.failure is not None:
            return b""
        return self.fail(LaneFailed("the lane's stream ended early"))

    @property
    def is_over(self) -> bool:
        """The lane's stream came to its own end."""
        return self._is_done

    @property
    def answer(self) -> bytes | None:
        """The whole answer, where there is one object: a stream of chunks has none."""
        return None

    async def settle(self) -> bytes:
        """What is to be given after something that takes time; nothing here."""
        return b""

    def error_event(self, error: APIError) -> bytes:
        """How a failure is told once the head is out."""
        return self._dialect.error_event(error)

    def fail(self, error: APIError) -> bytes:
        """Nothing more will come; what was held back is given as it came."""
        self.failure = error
        return self._release()

    def _take(self, event: Event) -> bytes:
        if event.data is None:
            return self._pass(event.raw)
        before = b"" if self._has_begun else self._release()
        self._has_begun = True
        self.run.saw_event(event.data)
        return before + self._take_data(event, event.data)

    def _take_data(self, event: Event, data: bytes) -> bytes:
        if data == DONE:
            self._is_done = True
            return self._release(is_last=True) + event.raw
        if not data.startswith(b"{"):
            raise LaneFailed("the lane sent an event that is not a chunk")
        if self._finish is None and not self._dialect.can_matter(data):
            return event.raw
        return self._take_chunk(event, data, read_object(data))

    def _take_chunk(self, event: Event, data: bytes, chunk: Mapping[str, Any]) -> bytes:
        dialect = self._dialect
        dialect.raise_failure(chunk)
        self._take_counts(chunk)
        shown = without_stats(self.run, data, chunk)
        if shown is None:
            return b""
        event = _with_data(event, shown)
        if finished := dialect.num_finished(chunk):
            before = self._release()
            self._num_finished += finished
            self._finish = event
            if dialect.ends_with_done:
                return before
            self._is_done = True
            return before + self._release(is_last=True)
        if dialect.has_text(chunk):
            # More text can only follow the finish of another choice; that of the last one stays held.
            is_early = self._num_finished < self.run.call.num_choices
            return self._release() + event.raw if is_early else self._pass(event.raw)
        if dialect.completion_tokens(chunk) is None:
            return self._pass(event.raw)
        return self._release(is_last=True) + event.raw

    def _take_counts(self, chunk: Mapping[str, Any]) -> None:
        dialect, outcome = self._dialect, self.run.outcome
        details, tokens = dialect.details(chunk), dialect.completion_tokens(chunk)
        if details is not None:
            self._details = [*self._details, *details] if dialect.counts_add_up else details
            take_stats(self.run, self._details)
        if tokens is not None and not dialect.counts_add_up:
            outcome.num_completion_tokens = tokens
        elif tokens is not None and dialect.num_finished(chunk):
            outcome.num_completion_tokens = (outcome.num_completion_tokens or 0) + tokens

    def _pass(self, raw: bytes) -> bytes:
        if self._finish is None and self._has_begun:
            return raw
        self._behind.append(raw)
        return b""

    def _release(self, *, is_last: bool = False) -> bytes:
        """The held finish chunk, with the report when it is the last one, and what waits behind it."""
        finish, behind = self._finish, b"".join(self._behind)
        self._finish, self._behind = None, []
        if finish is None:
            return behind
        if is_last and finish.data is not None:
            finish = _with_data(finish, with_report(self.run, finish.data))
        return finish.raw + behind


class KeptRelay(StreamRelay):
    """A stream of `/v1/responses` whose end is told when the response is stored."""

    def __init__(self, run: Run, keep: Keep) -> None:
        super().__init__(run)
        self._keep = keep
        self._response: object = None
        self._held = b""
        self._is_settled = False

    @property
    def is_over(self) -> bool:
        """See `StreamRelay`; and what is to be stored is."""
        return self._is_settled

    def feed(self, events: Iterable[Event]) -> bytes:
        """See `StreamRelay`; the bytes that come with the end wait for `settle`."""
        told = super().feed(events)
        if not self._is_done:
            return told
        self._held += told
        return b""

    async def settle(self) -> bytes:
        """The end, once the response is stored. What hinders that is raised."""
        if self._is_settled or not self._is_done:
            return b""
        if isinstance(self._response, dict):
            await self._keep(orjson.dumps(self._response))
        self._is_settled = True
        return self._held

    def _take_chunk(self, event: Event, data: bytes, chunk: Mapping[str, Any]) -> bytes:
        told = super()._take_chunk(event, data, chunk)
        if self._is_done:
            self._response = chunk.get("response")
        return told


def _with_data(event: Event, data: bytes) -> Event:
    """The event with other data; its remaining bytes stay."""
    old = event.data
    if old is None or old == data:
        return event
    at = event.raw.find(old)
    if at >= 0:
        raw = event.raw[:at] + data + event.raw[at + len(old) :]
    else:  # data over several lines
        name = b"" if event.event is None else b"event: " + event.event.encode() + b"\n"
        raw = name + b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"
    return replace(event, raw=raw, data=data)
