"""What lanes and clients do in a storm, request by request, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from outrider.core import PRIORITIES
from outrider.runtimes.scripted_replies import Fault, Reply, chat_reply, error_event, error_reply

CHAT = "/v1/chat/completions"
EVENTS = (("Content-Type", "text/event-stream"),)
JSON = (("Content-Type", "application/json"),)
#: Nobody waits longer than this; what has no end in sight leaves, or has a deadline.
PATIENCE_S = 60.0
TENANTS = ("ada", "bob", "eve")
#: Statuses by which a request may be refused before a lane hears of it.
REFUSALS = {408, 429, 503, 504}


@dataclass(frozen=True, slots=True)
class Script:
    """One request of a storm: what its lane does, and what its client does."""

    number: int
    fault: str
    is_stream: bool
    num_pieces: int
    delay_s: float
    leaves_after_s: float | None
    leaves_after_events: int | None
    deadline_ms: int | None
    tenant: str
    priority: str
    starts_after_s: float


def _flat(reply: Reply, upto: int | None, *rest: bytes | float | Fault) -> Reply:
    return Reply(reply.status, reply.headers, (*reply.steps[:upto], *rest))


def _length(script: Script, good: Reply, more: int) -> Reply:
    body = b"".join(step for step in good.steps if isinstance(step, bytes))
    headers = (*good.headers, ("Content-Length", str(len(body) + more)))
    return Reply(200, headers, (body, Fault.CLOSE))


#: Name -> what the lane does in place of `good`, its whole answer, and whether that ends by itself.
FAULTS: Mapping[str, tuple[Callable[[Script, Reply], Reply], bool]] = {
    "none": (lambda script, good: good, True),
    "slow head": (lambda script, good: Reply(200, good.headers, (0.05, *good.steps)), True),
    "closes after": (lambda script, good: _length(script, good, 0), True),
    "too short": (lambda script, good: _length(script, good, 9), True),
    "too long": (lambda script, good: _length(script, good, -9), True),
    "close": (lambda script, good: Reply(steps=(Fault.CLOSE,)), True),
    "reset": (lambda script, good: Reply(steps=(0.002, Fault.RESET)), True),
    "garbage": (lambda script, good: Reply(steps=(Fault.GARBAGE,)), True),
    "close after head": (lambda script, good: Reply(200, good.headers, (b"", Fault.CLOSE)), True),
    "close midway": (lambda script, good: _flat(good, 2, Fault.CLOSE), True),
    "reset midway": (lambda script, good: _flat(good, 2, 0.002, Fault.RESET), True),
    "garbage midway": (lambda script, good: _flat(good, 2, Fault.GARBAGE), True),
    "truncated": (lambda script, good: _flat(good, 2, b" "), True),
    "no event": (lambda script, good: _flat(good, 2, b"data: <html>\n\n", b""), True),
    "binary": (lambda script, good: Reply(200, good.headers, (b"\xff\x00\x80" * 50, b"\n\n")), True),
    "other type": (lambda script, good: Reply(200, (("Content-Type", "text/html"),), (b"<p>", b"</p>")), True),
    "empty": (lambda script, good: Reply(200, good.headers, ()), True),
    "429": (lambda script, good: error_reply(429, headers=[("Retry-After", "2")]), True),
    "503": (lambda script, good: error_reply(503, "object"), True),
    "500": (lambda script, good: error_reply(500, "text"), True),
    "400": (lambda script, good: error_reply(400), True),
    "500 without a body": (lambda script, good: Reply(500, JSON, (b"", Fault.CLOSE)), True),
    "error event": (lambda script, good: _flat(good, 2, error_event(500), b"data: [DONE]\n\n"), True),
    "abort": (lambda script, good: _aborted(script), True),
    "hang": (lambda script, good: Reply(steps=(Fault.HANG,)), False),
    "hang after head": (lambda script, good: Reply(200, good.headers, (b"", Fault.HANG)), False),
    "hang midway": (lambda script, good: _flat(good, 2, Fault.HANG), False),
}


def _aborted(script: Script) -> Reply:
    return chat_reply(("a",) * script.num_pieces, stream=script.is_stream, finish_reason="abort")


def script_of(seed: int, number: int) -> Script:
    """The same for the same seed and number, whatever else runs."""
    random = Random(f"{seed}/{number}")
    fault = random.choice([*FAULTS, *["none"] * 8])
    is_endless = not FAULTS[fault][1]
    departure = random.choice(["time", "events", "deadline"]) if is_endless else random.choice(["no"] * 6 + ["time"])
    if not is_endless and random.random() < 0.1:
        departure = random.choice(["events", "deadline"])
    return Script(
        number,
        fault,
        is_stream=random.random() < 0.7,
        num_pieces=random.randint(1, 8),
        delay_s=random.choice([0.0, 0.0, 0.001, 0.01]),
        # Who waits for events that do not come must leave at some time too.
        leaves_after_s=random.uniform(0.0, 0.15) if departure in ("time", "events") else None,
        leaves_after_events=random.randint(0, 3) if departure == "events" else None,
        deadline_ms=random.randint(1, 300) if departure == "deadline" else None,
        tenant=random.choice(TENANTS),
        priority=random.choice(PRIORITIES),
        starts_after_s=random.uniform(0.0, 0.02),
    )
