"""What a scripted lane says: replies in SGLang's shapes, down to the order of events."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Literal

import orjson

from outrider.core import SpecStats
from outrider.policy.plan import PLAN_OFF, Plan

#: The text of the default reply; a piece is a token and an event.
SENTENCE = ("The", " quick", " brown", " fox", " jumps", ".")

_NUM_PROMPT_TOKENS = 5
_EOS_TOKEN = 2
_JSON = ("Content-Type", "application/json")
_EVENTS = ("Content-Type", "text/event-stream; charset=utf-8")


class Fault(Enum):
    """A step that breaks the exchange."""

    HANG = "hang"  # say nothing until the client leaves
    CLOSE = "close"  # close the connection without ending the body
    RESET = "reset"  # drop the connection; the client's socket reports a reset
    GARBAGE = "garbage"  # send bytes that are neither a head nor a chunk, then close


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request as it arrived."""

    method: str
    path: str
    """Without the query."""
    query: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    at_s: float
    """`time.monotonic()`: of the arrival in `requests`, of the client's leaving in `disconnects`."""

    def json(self) -> Any:
        """The parsed body; ValueError when it is not JSON."""
        return orjson.loads(self.body)


@dataclass(frozen=True, slots=True)
class Reply:
    """A status and steps: bytes are sent as one chunk, a number sleeps so many seconds, an event is waited for, a
    Fault breaks off.

    The head goes out with the first bytes (empty ones send the head alone), so earlier steps delay it. A body of at
    most one step of bytes gets a Content-Length, another is chunked; a Content-Length among `headers` is sent as it
    stands, right or wrong.
    """

    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    steps: Sequence[bytes | float | asyncio.Event | Fault] = ()


def json_reply(value: object, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Reply:
    """A whole JSON body."""
    return Reply(status, (_JSON, *headers), (orjson.dumps(value),))


def event(value: object) -> bytes:
    """One event of a stream, with JSON data."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def error_reply(
    status: int,
    shape: Literal["flat", "object", "text"] = "flat",
    message: str = "scripted error",
    headers: Sequence[tuple[str, str]] = (),
) -> Reply:
    """SGLang's three error bodies: OpenAI routes `flat`, `/generate` values `object`, `/generate` contract `text`."""
    bodies: dict[str, object] = {
        "flat": _flat_error(status, message),
        "object": {"error": {"message": message}},
        "text": {"error": message},
    }
    return json_reply(bodies[shape], status, headers)


def error_event(status: int, message: str = "scripted error") -> bytes:
    """The event by which an OpenAI route of SGLang reports a failure after the head was sent."""
    return event({"error": _flat_error(status, message)})


def _flat_error(status: int, message: str) -> dict[str, object]:
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def chat_reply(  # noqa: PLR0913 - one for each thing that a script varies
    pieces: Sequence[str] = SENTENCE,
    *,
    stream: bool,
    include_usage: bool = False,
    stats: SpecStats | None = None,
    finish_reason: str = "stop",
    delay_s: float = 0.0,
    model: str = "scripted",
    rid: str = "scripted-1",
    is_chat: bool = True,
) -> Reply:
    """A completion in SGLang's event order, or whole; `stats` adds `sglext`, `delay_s` parts events."""
    kind = "chat.completion" if is_chat else "text_completion"
    head = {"id": rid, "object": kind, "created": 1_700_000_000, "model": model}
    end = _end(finish_reason)
    tail = _Tail(len(pieces), include_usage, stats, delay_s)
    if not stream:
        text = "".join(pieces)
        message = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
        said = {"message": message} if is_chat else {"text": text}
        return tail.whole(head | {"choices": [{"index": 0, **said, "logprobs": None} | end]})
    if not is_chat:
        return tail.stream(head, [{"text": text} for text in (*pieces, "")], end)
    deltas: list[dict[str, object]] = [{"content": piece, "reasoning_content": None} for piece in pieces]
    deltas = [{"role": "assistant", "content": "", "reasoning_content": None}, *deltas, {}]
    return tail.stream(head | {"object": "chat.completion.chunk"}, [{"delta": delta} for delta in deltas], end)


#: The same of a text completion.
completion_reply = partial(chat_reply, is_chat=False)


def _end(finish_reason: str | None) -> dict[str, object]:
    return {"finish_reason": finish_reason, "matched_stop": _EOS_TOKEN if finish_reason == "stop" else None}


@dataclass(frozen=True, slots=True)
class _Tail:
    """What follows the text on both OpenAI routes."""

    num_tokens: int
    include_usage: bool
    stats: SpecStats | None
    delay_s: float

    def whole(self, body: dict[str, object]) -> Reply:
        return json_reply(body | {"usage": self.usage} | self.sglext)

    def stream(self, head: dict[str, object], parts: Sequence[Mapping[str, object]], end: dict[str, object]) -> Reply:
        """Each part is the text of one event; the last one carries `end`."""
        ends = [_end(None)] * (len(parts) - 1) + [end]
        choices = [{"index": 0, **part, "logprobs": None, **last} for part, last in zip(parts, ends, strict=True)]
        events = [head | {"choices": [choice], "usage": None} for choice in choices]
        if self.stats is not None:
            events.append(head | {"choices": [], "usage": None} | self.sglext)
        if self.include_usage:
            events.append(head | {"choices": [], "usage": self.usage})
        steps: list[bytes | float | Fault] = []
        for data in (*map(event, events), b"data: [DONE]\n\n"):
            steps += [self.delay_s, data] if self.delay_s and steps else [data]
        return Reply(200, (_EVENTS,), steps)

    @property
    def usage(self) -> dict[str, int]:
        total = _NUM_PROMPT_TOKENS + self.num_tokens
        counts = {"prompt_tokens": _NUM_PROMPT_TOKENS, "completion_tokens": self.num_tokens, "total_tokens": total}
        return counts | {"reasoning_tokens": 0}

    @property
    def sglext(self) -> dict[str, object]:
        """SGLang's accept length counts the token of the prefill too, unlike ours."""
        if self.stats is None:
            return {}
        proposed = self.stats.num_proposed
        details = {
            "spec_accept_rate": self.stats.num_accepted / proposed if proposed else None,
            "spec_accept_length": self.num_tokens / self.stats.num_verify_steps,
            "spec_num_correct_drafts": self.stats.num_accepted,
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": self.stats.num_verify_steps,
            "spec_correct_drafts_histogram": list(self.stats.histogram),
        }
        return {"sglext": {"spec_tokens_details": details}}


def default_reply(request: Recorded) -> Reply:
    """`SENTENCE`, as the body asks for it; statistics when the body wants them and its plan speculates."""
    is_chat = {"/v1/chat/completions": True, "/v1/completions": False}.get(request.path)
    if is_chat is None:
        return error_reply(404, message=f"{request.path} is not scripted")
    try:
        body = request.json()
        plan = _plan_of(body)
    except (ValueError, TypeError, AttributeError) as error:
        return error_reply(400, message=f"bad body: {error}")
    stats = None
    if not plan.is_off and body.get("return_spec_tokens_details"):
        stats = SpecStats(3, 2, (1, 2) + (0,) * (plan.k - 1), num_proposed=3 * plan.k)
    return chat_reply(
        is_chat=is_chat,
        stream=bool(body.get("stream")),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        stats=stats,
        model=body.get("model", "scripted"),
        rid=body.get("rid") or "scripted-1",
    )


def _plan_of(body: dict[str, Any]) -> Plan:
    wire = (body.get("custom_params") or {}).get("outrider")
    return PLAN_OFF if wire is None else Plan.from_wire(wire)
