from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core import SpecStats
from outrider.errors import ContextLengthExceeded, InvalidRequest, LaneFailed, Rejected
from outrider.runtimes.dialects import dialect_of
from outrider.runtimes.protocol import (
    error_of_response,
    num_finished,
    raise_failure,
    read_object,
    read_stats,
)


def details(histogram=(1, 1), accepted=1, steps=2, **more):
    counts = {"spec_verify_ct": steps, "spec_num_correct_drafts": accepted}
    return counts | {"spec_correct_drafts_histogram": list(histogram)} | more


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "m"}}, "m"),
        ({"error": "m"}, "m"),
        ({"object": "error", "message": "m", "type": "T", "param": None, "code": 400}, "m"),
        ({"error": 7}, "the lane answered HTTP 400"),
        ([], "the lane answered HTTP 400"),
        ({}, "the lane answered HTTP 400"),
    ],
)
def test_error_bodies_in_all_shapes(body, message):
    """The message survives; a body that says nothing gives the status."""
    error = error_of_response(400, orjson.dumps(body))
    assert (type(error), error.message, error.status) == (InvalidRequest, message, 400)


def test_error_bodies_keep_what_the_lane_knows():
    """Code and param of our own engine, a foreign 4xx, bytes that are no JSON, a status that is no error."""
    body = {"error": {"message": "too long", "type": "t", "param": "messages", "code": "context_length_exceeded"}}
    error = error_of_response(400, orjson.dumps(body))
    assert (type(error), error.param) == (ContextLengthExceeded, "messages")
    assert isinstance(error_of_response(422, b'{"message":"m"}'), Rejected)
    assert error_of_response(503, b"<html>").status == 503
    assert isinstance(error_of_response(302, b""), LaneFailed)


@pytest.mark.parametrize(
    ("chunk", "status"),
    [
        ({"error": {"message": "m", "code": 503}}, 503),
        ({"error": {"message": "m", "code": "context_length_exceeded"}}, 400),
        ({"error": {"message": "m"}}, 502),
        ({"error": "m"}, 502),
        ({"choices": [{"finish_reason": "abort"}]}, 502),
        ({"choices": [{"finish_reason": None}, {"finish_reason": {"type": "abort", "status_code": 400}}]}, 400),
        ({"choices": [{"finish_reason": {"type": "abort", "message": "m"}}]}, 502),
    ],
)
def test_failures_inside_a_200(chunk, status):
    """Errors and aborts, with the status that they name."""
    with pytest.raises(Exception) as caught:
        raise_failure(chunk)
    assert caught.value.status == status


def test_what_is_no_failure():
    """Odd shapes are the client's to read."""
    for chunk in ({}, {"error": None}, {"choices": None}, {"choices": [1]}, {"choices": [{"finish_reason": "stop"}]}):
        raise_failure(chunk)


@pytest.mark.parametrize("raw", [b"[]", b"1", b"{", b"", b"\xff"])
def test_only_objects_are_read(raw):
    """Anything else is the lane's failure."""
    with pytest.raises(LaneFailed):
        read_object(raw)


def test_statistics_are_read_and_summed():
    """One choice, several, none, and K=0 steps that a lane does not report."""
    assert read_stats(details(spec_num_proposed_drafts=4)) == SpecStats(2, 1, (1, 1), 4)
    both = [details(spec_num_proposed_drafts=4), None, details((0, 0, 3), 6, 3, spec_num_proposed_drafts=6)]
    assert read_stats(both) == SpecStats(5, 7, (1, 1, 3), 10)
    assert read_stats([details(), details(spec_num_proposed_drafts=4)]).num_proposed is None
    for nothing in (None, [], [None], {}, {"spec_verify_ct": 0}, {"spec_verify_ct": None}):
        assert read_stats(nothing) is None


@pytest.mark.parametrize(
    "bad",
    [
        details(steps=3),
        details(accepted=2),
        details(histogram=()),
        details(histogram=(1, -1), accepted=-1, steps=0.5),
        details(histogram=("1", 1)),
        details(steps=True, histogram=(1,), accepted=0),
        details(spec_num_proposed_drafts=0),
        {"spec_verify_ct": 1},
        {"spec_verify_ct": 1, "spec_correct_drafts_histogram": [1]},
        "text",
        7,
    ],
)
def test_statistics_that_cannot_be_true_are_refused(bad):
    """Identities, types and missing counts."""
    with pytest.raises(ValueError):
        read_stats(bad)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.sampled_from([None, "stop", "length"]))
def test_chunks_are_parsed_only_when_they_can_matter(content, reason):
    """A text never looks like more than a text; a finish is always seen."""
    content = content + '"finish_reason":"stop" "error": "sglext":'
    chunk = {"choices": [{"delta": {"content": content}, "finish_reason": reason}], "usage": None}
    assert dialect_of("/v1/completions").can_matter(orjson.dumps(chunk)) is (reason is not None)
    assert num_finished(chunk) == (reason is not None)


@pytest.mark.parametrize(
    ("path", "chunks"),
    [
        ("/v1/chat/completions", [{"choices": [{"delta": {"content": part}}]} for part in ("the ", None, "cat")]),
        ("/v1/completions", [{"choices": [{"text": "the "}]}, {"choices": []}, {"choices": [{"text": "cat"}]}]),
        ("/generate", [{"text": "the "}, {"text": "the cat", "meta_info": {}}, {}]),
        ("/v1/responses", [{"type": "response.output_text.delta", "delta": part} for part in ("the ", "cat")]
         + [{"type": "response.reasoning_text.delta", "delta": "?"}]),
        ("/v1/messages", [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "the cat"}},
                          {"type": "content_block_delta", "delta": {"type": "input_json_delta"}}]),
    ],
)  # fmt: skip
def test_what_a_stream_says(path: str, chunks: list) -> None:
    """By every route's own way; what is no text says nothing."""
    assert dialect_of(path).streamed_text(chunks) == "the cat"
