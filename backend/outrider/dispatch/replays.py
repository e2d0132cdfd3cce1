"""Finished answers, looked through for what look-ups would have shown of them: one at a time, between other work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import orjson

from outrider.core import Outcome
from outrider.dispatch.call import Call
from outrider.policy.decision import Decision
from outrider.policy.features import text_of
from outrider.policy.lookup import Written
from outrider.runtimes.dialects import dialect_of

#: Events and bytes of one stream that are kept until its end, and streams of which any are kept at once.
_MAX_EVENTS, _MAX_BYTES, _MAX_STREAMS = 300, 65_536, 16
#: Share of the event loop's time that looking through may take, and seconds after which others come first.
_SHARE, _SLICE_S = 0.02, 0.0002


@dataclass(slots=True)
class Kept:
    """The beginning of a stream, as it came: reading it waits until the stream is over."""

    events: list[bytes] = field(default_factory=list)
    num_bytes: int = 0

    def add(self, data: bytes) -> None:
        """Unless there is enough already."""
        if len(self.events) < _MAX_EVENTS and self.num_bytes < _MAX_BYTES:
            self.events.append(data)
            self.num_bytes += len(data)

    def clear(self) -> None:
        """Of an attempt that was given up."""
        self.events.clear()
        self.num_bytes = 0


class Replays:
    """Answers that come while one is looked through, or too soon after it, teach nothing: they are not waited for."""

    def __init__(self, learn: Callable[[Decision, Written], Iterator[None]]) -> None:
        """`learn` is advanced bit by bit."""
        self._learn = learn
        self._task: asyncio.Task[None] | None = None
        self._free_at_s = 0.0
        self._num_kept = 0

    @property
    def is_free(self) -> bool:
        """Whether another replay may begin: none runs, and the pause after the last one is over."""
        return (self._task is None or self._task.done()) and time.monotonic() >= self._free_at_s

    def keep(self, call: Call) -> Kept | None:
        """Where a stream's beginning is to be kept, to be given back by `end`; None where it is not."""
        if not call.is_stream or call.num_choices > 1 or self._num_kept >= _MAX_STREAMS:
            return None
        self._num_kept += 1
        return Kept()

    def end(self, call: Call, outcome: Outcome, decision: Decision, kept: Kept | None) -> None:
        """A request is over; what it wrote is looked through when it ended well and nothing else is."""
        self._num_kept -= kept is not None
        has_text = bool(outcome.text or (kept and kept.events))
        if outcome.status == 200 and has_text and self.is_free:
            self._task = asyncio.create_task(self._look_through(decision, call, outcome.text, kept))

    async def _look_through(self, decision: Decision, call: Call, text: str | None, kept: Kept | None) -> None:
        began_s = time.perf_counter()
        prompt, answer = text_of(call.body), text if kept is None else _streamed(call.path, kept)
        # Of a prompt in token ids nothing could be found again, though its drafter finds it.
        written = Written.of(prompt, (prompt and answer) or "")
        spent_s = 0.0
        for _ in self._learn(decision, written):
            now_s = time.perf_counter()
            if now_s - began_s > _SLICE_S:
                spent_s += now_s - began_s
                await asyncio.sleep(0)
                began_s = time.perf_counter()
        spent_s += time.perf_counter() - began_s
        self._free_at_s = time.monotonic() + spent_s / _SHARE


def _streamed(path: str, kept: Kept) -> str:
    """The text of a stream's events; what is no JSON object, as [DONE], has none."""
    chunks = []
    for data in kept.events:
        with suppress(orjson.JSONDecodeError):
            chunks.append(orjson.loads(data))
    return dialect_of(path).streamed_text([chunk for chunk in chunks if isinstance(chunk, dict)])
