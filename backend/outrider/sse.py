"""Server-sent events: cuts a byte stream into events without changing a byte of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Data of the event that ends every stream of the OpenAI protocol.
DONE = b"[DONE]"
#: Default limit of one event, in bytes.
MAX_EVENT_BYTES = 64 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
# A carriage return ends a line only when the next byte is known: it may be half of \r\n.
_LINE_END = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)
_LAST_LINE_END = re.compile(rb"\r\n|\n|\r")
#: An event as nearly all are, from its first byte to its last.
_USUAL = re.compile(rb"data: ([^\r\n]*+)\n\n")


class SSEError(ValueError):
    """The bytes are not a complete stream of events: one is over the limit, or the last one is cut off."""


@dataclass(slots=True)
class Event:
    """One block of the stream, up to and including the blank line that ends it."""

    raw: bytes
    """All bytes of the block; those of all events, concatenated, are the stream."""
    data: bytes | None
    """Data lines joined by newlines; None when the block has none (comments, keep-alives)."""
    event: str | None
    """Name of the event; None when it has none."""


class SSEDecoder:
    """Takes a stream in pieces of any size and gives its events; how the pieces are cut makes no difference.

    After an SSEError the decoder is of no further use.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        if max_event_bytes < 1:
            raise ValueError(f"max_event_bytes must be at least 1, not {max_event_bytes}")
        self._max_event_bytes = max_event_bytes
        self._buffer = bytearray()  # begins with the first byte of the current event
        self._line = 0  # where the current line begins
        self._scanned = 0  # no line ends before here in the current line
        self._data: list[bytes] = []
        self._name: str | None = None
        self._is_first_line = True

    def feed(self, data: bytes) -> list[Event]:
        """Events that are complete now. SSEError when one is over the limit."""
        self._buffer += data
        return self._take(_LINE_END)

    def close(self) -> list[Event]:
        """End of the stream; SSEError when bytes of an unterminated event remain.

        The list is empty but for a stream that ends in a bare carriage return, whose last event was held back.
        """
        events = self._take(_LAST_LINE_END)
        if self._buffer:
            raise SSEError(f"the stream ended inside an event, {len(self._buffer)} bytes after the last blank line")
        return events

    def _take(self, line_end: re.Pattern[bytes]) -> list[Event]:
        events = []
        while True:
            if not self._scanned and (usual := _USUAL.match(self._buffer)):
                self._is_first_line = False
                self._check_size(usual.end())
                events.append(Event(usual[0], usual[1], None))
                del self._buffer[: usual.end()]
                continue
            match = line_end.search(self._buffer, self._scanned)
            if match is None:
                break
            line = bytes(self._buffer[self._line : match.start()])
            self._line = self._scanned = match.end()
            if self._is_first_line:
                self._is_first_line = False
                line = line.removeprefix(_BOM)
            if line:
                self._read_field(line)
            else:
                events.append(self._finish())
        self._check_size(len(self._buffer))
        self._scanned = max(self._line, len(self._buffer) - 1)
        return events

    def _read_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value.decode("utf-8", errors="replace") or None

    def _finish(self) -> Event:
        self._check_size(self._line)
        data = b"\n".join(self._data) if self._data else None
        event = Event(bytes(self._buffer[: self._line]), data, self._name)
        del self._buffer[: self._line]
        self._line = self._scanned = 0
        self._data, self._name = [], None
        return event

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_event_bytes:
            raise SSEError(f"an event is over the limit of {self._max_event_bytes} bytes")
