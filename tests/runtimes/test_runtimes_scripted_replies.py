"""Replies in SGLang's shapes, without a socket."""

from __future__ import annotations

from typing import Any

import orjson

from outrider.core import SpecStats
from outrider.runtimes.scripted_replies import Reply, chat_reply, completion_reply, error_event, error_reply

STATS = SpecStats(3, 2, (1, 2))


def body_of(reply: Reply) -> Any:
    return orjson.loads(b"".join(step for step in reply.steps if isinstance(step, bytes)))


def test_the_three_error_shapes() -> None:
    """An error is flat, an object or a bare string; in a stream the flat object is wrapped."""
    assert error_reply(503, "flat", "full").steps == (
        b'{"object":"error","message":"full","type":"InternalServerError","param":null,"code":503}',
    )
    assert error_reply(400, "object", "no").steps == (b'{"error":{"message":"no"}}',)
    assert error_reply(400, "text", "no").steps == (b'{"error":"no"}',)
    assert error_event(400, "no").startswith(b'data: {"error":{"object":"error","message":"no"')


def test_delays_part_events() -> None:
    """`delay_s` pauses between events, not before the first."""
    steps = chat_reply(["a"], stream=True, delay_s=0.5).steps
    assert [step for step in steps if isinstance(step, float)] == [0.5] * 3
    assert isinstance(steps[0], bytes)


def test_a_length_finish_has_no_matched_stop() -> None:
    """Only a stop names what matched."""
    reply = chat_reply(["a"], stream=False, stats=STATS, finish_reason="length")
    choice = body_of(reply)["choices"][0]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("length", None)


def test_statistics_without_a_count_of_proposals() -> None:
    """A rate of an unknown number is unknown, not zero; SGLang's length counts the prefill's token."""
    for make in (chat_reply, completion_reply):
        details = body_of(make(["a"] * 6, stream=False, stats=STATS))["sglext"]["spec_tokens_details"]
        assert (details["spec_accept_rate"], details["spec_num_proposed_drafts"]) == (None, None)
        assert details["spec_accept_length"] == 2.0
