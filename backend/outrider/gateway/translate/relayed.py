"""A chat answer on its way to a client of another route: the same relay, with its events told anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import orjson

from outrider.dispatch.run import Run
from outrider.errors import APIError
from outrider.gateway.stream import Keep, StreamRelay
from outrider.gateway.translate.delta import Delta, read_delta
from outrider.gateway.translate.messages_answer import MessagesAnswer
from outrider.gateway.translate.responses_answer import ResponsesAnswer
from outrider.runtimes.dialects import MESSAGES, dialect_of
from outrider.runtimes.protocol import read_object
from outrider.sse import DONE, Event, SSEDecoder

#: What the gateway adds to a chat answer, and so to what it becomes.
_OURS = ("outrider", "metrics")


class Answer(Protocol):
    """A route's answer as it grows."""

    def begin(self) -> list[dict[str, Any]]:
        """The first events."""

    def feed(self, delta: Delta) -> list[dict[str, Any]]:
        """Events of what came."""

    def complete(self) -> list[dict[str, Any]]:
        """Events that close what is open."""

    async def end(self) -> list[dict[str, Any]]:
        """The last events, after what needs waiting."""

    def whole(self) -> dict[str, Any]:
        """After `end`."""

    def error_event(self, error: APIError) -> bytes:
        """The error as the route's own event."""


class Messages:
    """Of `/v1/messages`."""

    def __init__(self, inner: MessagesAnswer) -> None:
        self._inner = inner
        self.begin, self.feed, self.complete, self.whole = inner.begin, inner.feed, inner.complete, inner.snapshot

    async def end(self) -> list[dict[str, Any]]:
        """See `Answer`."""
        return self._inner.last()

    def error_event(self, error: APIError) -> bytes:
        """See `Answer`."""
        return dialect_of(MESSAGES).error_event(error)


class Responses:
    """Of `/v1/responses`; `keep` stores the whole before the client is told of its end."""

    def __init__(self, inner: ResponsesAnswer, keep: Keep | None) -> None:
        self._inner = inner
        self._keep = keep
        self._is_stored = False
        self.feed, self.complete = inner.feed, inner.complete

    def begin(self) -> list[dict[str, Any]]:
        """See `Answer`."""
        return self._inner.begin(self._keep is not None)

    async def end(self) -> list[dict[str, Any]]:
        """See `Answer`; stored before it is told, which the last event says."""
        if self._keep is not None:
            self._is_stored = True  # as the stored one says of itself
            self._is_stored = await self._keep(orjson.dumps(self.whole()))
        return [self._inner.last(self._is_stored)]

    def whole(self) -> dict[str, Any]:
        """See `Answer`."""
        return self._inner.snapshot(self._inner.status, is_stored=self._is_stored)

    def error_event(self, error: APIError) -> bytes:
        """See `Answer`."""
        return encoded(self._inner.error(error.to_wire()["error"]))


class TranslatedRelay:
    """Takes the lane's chat events, gives those of the client's route; has the methods of `StreamRelay`."""

    def __init__(self, run: Run, answer: Answer) -> None:
        self.run = run
        self._inner = StreamRelay(run)
        self._answer = answer
        self._decoder = SSEDecoder()
        self._ours: dict[str, Any] = {}
        self._has_begun = False
        self._has_ended = False
        self.is_over = False

    @property
    def failure(self) -> APIError | None:
        """See `Relay`."""
        return self._inner.failure

    @property
    def answer(self) -> bytes | None:
        """The whole answer, at the end."""
        return orjson.dumps(self._answer.whole() | self._ours) if self.is_over else None

    def feed(self, events: Iterable[Event]) -> bytes:
        """See `Relay`."""
        return self._told(self._inner.feed(events))

    def end(self) -> bytes:
        """See `Relay`."""
        return self._told(self._inner.end())

    def fail(self, error: APIError) -> bytes:
        """See `Relay`."""
        return self._told(self._inner.fail(error))

    async def settle(self) -> bytes:
        """The last events, once the chat is over. What hinders the answer from being stored is raised."""
        if not self._has_ended or self.is_over:
            return b""
        last = await self._answer.end()
        self.is_over = True
        last[-1] |= self._ours
        return b"".join(map(encoded, last))

    def error_event(self, error: APIError) -> bytes:
        """See `Relay`."""
        return self._answer.error_event(error)

    def _told(self, raw: bytes) -> bytes:
        """Of whole events of chat. Stops at one that is none."""
        out = []
        try:
            for event in self._decoder.feed(raw):
                out.append(self._take(event))
        except APIError as error:
            self._inner.fail(error)
        return b"".join(out)

    def _take(self, event: Event) -> bytes:
        if event.data is None:
            return event.raw
        told = [] if self._has_begun else self._answer.begin()
        self._has_begun = True
        if event.data == DONE:
            self._has_ended = True
            told += self._answer.complete()
        else:
            chunk = read_object(event.data)
            self._ours |= {name: chunk[name] for name in _OURS if name in chunk}
            told += self._answer.feed(read_delta(chunk))
        return b"".join(map(encoded, told))


async def translated_body(raw: bytes, answer: Answer) -> bytes:
    """The route's whole answer, for that of a chat. LaneFailed when that is none."""
    completion = read_object(raw)
    answer.feed(read_delta(completion))
    answer.complete()
    await answer.end()
    return orjson.dumps(answer.whole() | {name: completion[name] for name in _OURS if name in completion})


def encoded(event: Mapping[str, Any]) -> bytes:
    """One event, named by its type."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"
