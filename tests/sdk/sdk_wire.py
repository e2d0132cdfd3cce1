"""Pieces of the wire that the client's tests put together."""

from __future__ import annotations

import asyncio
from typing import Any

from outrider import errors
from outrider.runtimes.scripted_replies import Fault, Reply, event, json_reply

REPORT = {
    "requested": {"task": "code"},
    "effective": {"drafter": "ngram", "k": 4, "later": 1},
    "observed": {
        "num_verify_steps": 3,
        "num_proposed": 12,
        "num_accepted": 2,
        "accept_length": 1.6667,
        "accepted_histogram": [1, 2],
    },
    "lane": "embedded",
    "workload": "code",
    "rule": "greedy",
    "task": "code",
    "reasons": ["temperature is 0"],
    "field_of_a_later_version": True,
}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
DONE = b"data: [DONE]\n\n"
#: A header that keeps retries fast.
SOON = ("retry-after-ms", "1")
#: Every class that has a code of its own on the wire.
WIRE_ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, errors.APIError)
    and not kind.__subclasses__()
    and kind is not errors.Rejected
]


def delta(finish_reason: str | None = None, usage: Any = None, top: Any = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": fields, "finish_reason": finish_reason}
    return event({"id": "c1", "choices": [choice], "usage": usage} | (top or {}))


def stream_of(*steps: bytes | float | asyncio.Event | Fault) -> Reply:
    return Reply(200, (("Content-Type", "text/event-stream"), ("X-Request-Id", "q9")), steps)


def called(*calls: tuple[str, str] | tuple[str, str, str], text: str | None = None) -> Reply:
    """An answer that calls tools: (name, arguments as JSON) or with an id before them."""
    wire = [
        {"id": call[0] if len(call) == 3 else f"c{i}", "type": "function",
         "function": {"name": call[-2], "arguments": call[-1]}}
        for i, call in enumerate(calls)
    ]  # fmt: skip
    message = {"role": "assistant", "content": text, "tool_calls": wire}
    return json_reply(
        {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
    )


def said(text: str, finish_reason: str = "stop") -> Reply:
    """An answer in words."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return json_reply({"id": "1", "choices": [choice], "usage": USAGE})
