"""The event reader: same events however the stream is cut, and not a byte lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.sse import DONE, Event, SSEDecoder, SSEError


def decode(*pieces: bytes, max_event_bytes: int = 1024) -> list[Event]:
    decoder = SSEDecoder(max_event_bytes)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + decoder.close()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_all_three_line_ends_are_read(end: bytes) -> None:
    """Events end at a blank line, whichever line end the server uses."""
    stream = end.join([b"data: one", b"", b"data: two", b"", b""])
    assert [event.data for event in decode(stream)] == [b"one", b"two"]


def test_an_event_is_given_as_soon_as_its_blank_line_is_complete() -> None:
    """Nothing waits for the next packet when lines end in newlines."""
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\r\n\r") == []
    assert [event.data for event in decoder.feed(b"\n")] == [b"a"]
    assert [event.data for event in decoder.feed(b"data: b\n\ndata")] == [b"b"]


def test_data_lines_are_joined_and_one_space_is_dropped() -> None:
    """Several data lines make one value; only the first space after the colon is syntax."""
    stream = b"data:  padded\ndata:tight\ndata\ndata: end\n\n"
    assert decode(stream) == [Event(stream, b" padded\ntight\n\nend", None)]


def test_names_comments_and_other_fields() -> None:
    """A name is reported, comments and unknown fields stay in raw only."""
    stream = b": ping\n\n: note\nid: 7\nretry: 10\nevent: sglext_ids\ndatabase: no\ndata: {}\n\ndata: x\n\n"
    events = decode(stream)
    assert [(event.data, event.event) for event in events] == [(None, None), (b"{}", "sglext_ids"), (b"x", None)]
    assert b"".join(event.raw for event in events) == stream


def test_a_byte_order_mark_is_skipped_at_the_start_only() -> None:
    """The mark belongs to raw and not to the first field's name."""
    stream = b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"
    events = decode(*(bytes([byte]) for byte in stream))
    assert [event.data for event in events] == [b"a", None]
    assert events[0].raw.startswith(b"\xef\xbb\xbf")


def test_done_is_plain_data() -> None:
    """The end marker of OpenAI's protocol is an event like any other."""
    assert decode(b"data: [DONE]\n\n")[0].data == DONE


@pytest.mark.parametrize("rest", [b"data: cut", b"data: cut\n", b"data: cut\r", b":"])
def test_a_stream_that_ends_inside_an_event_is_an_error(rest: bytes) -> None:
    """A cut stream is told from a complete one."""
    decoder = SSEDecoder()
    assert len(decoder.feed(b"data: whole\n\n" + rest)) == 1
    with pytest.raises(SSEError, match="inside an event"):
        decoder.close()


@pytest.mark.parametrize("pieces", [[b"data: 0123456789\n\n"], [b"data: 0123", b"4567890"]])
def test_an_event_over_the_limit_is_an_error(pieces: list[bytes]) -> None:
    """The limit holds for whole events and for events still arriving."""
    with pytest.raises(SSEError, match="limit of 16 bytes"):
        decode(*pieces, max_event_bytes=16)


def test_the_limit_is_per_event() -> None:
    """Many events in one packet may exceed the limit together."""
    assert len(decode(b"data: 12345678\n\n" * 100, max_event_bytes=16)) == 100


def test_a_limit_below_one_byte_is_refused() -> None:
    """A nonsensical limit is named, not ignored."""
    with pytest.raises(ValueError, match="max_event_bytes"):
        SSEDecoder(0)


_TOKENS = [b"\r", b"\n", b"\r\n", b":", b" ", b"data: ", b"event: ", b"x", "é".encode(), b"\xef\xbb\xbf"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(_TOKENS), max_size=30).map(b"".join), st.lists(st.integers(0, 60), max_size=8))
def test_any_split_gives_the_same_events_and_raw_is_the_stream(body: bytes, cuts: list[int]) -> None:
    """Cutting the stream anywhere changes nothing, and raw concatenates to the input byte for byte."""
    stream = body + b"\ndata: last\n\n"
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(bounds)]
    events = decode(*pieces)
    assert events == decode(stream)
    assert events == decode(*(bytes([byte]) for byte in stream))
    assert b"".join(event.raw for event in events) == stream


_WHOLE_STREAM = b"".join([
    b": ping\r\n\r\n",
    'data: {"choices":[{"delta":{"content":"grüße 世界 🎉"}}]}\n\n'.encode(),
    b'event: x\r\nid: 1\r\ndata: {"two":\r\ndata: "lines"}\r\n\r\n',
    b"data: a\n\ndata: b\n\n: note\n\ndata: [DONE]\n\n",
])  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_split_at_every_byte(size: int) -> None:
    """Inside characters, line ends, names and numbers: two cuts at every distance give the same events."""
    whole = decode(_WHOLE_STREAM)
    assert len(whole) == 7
    for at in range(len(_WHOLE_STREAM)):
        pieces = _WHOLE_STREAM[:at], _WHOLE_STREAM[at : at + size], _WHOLE_STREAM[at + size :]
        assert decode(*pieces) == whole
