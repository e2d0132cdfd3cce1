"""One streamed request: what its bytes mean, when its tokens came, and every way in which it can fail."""

from __future__ import annotations

import aiohttp
import pytest

from outrider.core import SpecStats
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Fault, Reply, chat_reply, error_reply, event
from outrider.workloads.exchange import Answer, Reading, ask, read

STREAM = (("Content-Type", "text/event-stream"),)
DONE = b"data: [DONE]\n\n"


async def asked(reply: Reply, timeout_s: float = 60.0) -> tuple[Answer, Reading]:
    async with ScriptedLane(lambda _request: reply) as lane:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            answer = await ask(session, f"{lane.url}/v1/chat/completions", {"stream": True})
        return answer, read(answer)


def chunk(delta: dict | None = None, *, count: int | None = None, **fields: object) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    usage = None if count is None else {"prompt_tokens": 3, "completion_tokens": count}
    return event({"choices": choices, "usage": usage, **fields})


async def test_steps_have_their_moments_and_tokens() -> None:
    """By the running count; an event without text or tokens is no step, one whose text is held back is."""
    steps = [
        chunk({"role": "assistant", "content": ""}), 0.05, chunk({"content": "a"}, count=1), 0.1,
        chunk({"content": "b c d"}, count=4), chunk({}, count=6), chunk({}, count=6), chunk(count=6), DONE,
    ]  # fmt: skip
    answer, reading = await asked(Reply(200, STREAM, steps))
    assert [num for _, num in reading.steps] == [1, 3, 2]
    first, second, _ = (at_s for at_s, _ in reading.steps)
    assert first - answer.sent_s >= 0.05 and second - answer.sent_s >= 0.15
    assert ("".join(reading.text), reading.usage["completion_tokens"], reading.error) == ("ab c d", 6, None)


async def test_without_running_counts_steps_have_no_tokens() -> None:
    """Unknown is not zero; the count of all is still there."""
    _, reading = await asked(chat_reply(["a", " b"], stream=True, include_usage=True))
    assert [num for _, num in reading.steps] == [None, None]
    assert reading.usage["completion_tokens"] == 2


async def test_calls_are_put_together() -> None:
    """They come in pieces, and count as text for what is compared."""
    functions = [{"name": "add", "arguments": ""}, {"arguments": '{"a":'}, {"arguments": " 1}"}]
    pieces = [{"index": 0, "id": "c1" if i == 0 else None, "function": one} for i, one in enumerate(functions)]
    _, reading = await asked(Reply(200, STREAM, [*(chunk({"tool_calls": [piece]}) for piece in pieces), DONE]))
    (call,) = reading.message["tool_calls"]
    assert (call["id"], call["function"]) == ("c1", {"name": "add", "arguments": '{"a": 1}'})
    assert '"add"' in reading.whole_text and len(reading.steps) == 3


async def test_acceptance_is_read_from_the_shape_of_vllm_too() -> None:
    """Of a target that is no Outrider."""
    stats = SpecStats(3, 2, (1, 2), num_proposed=6)
    counts = {"num_spec_steps": 3, "num_draft_tokens": 6, "num_accepted_draft_tokens": 2,
              "mean_acceptance_length": 1.67, "acceptance_histogram": [1, 2]}  # fmt: skip
    _, reading = await asked(
        Reply(200, STREAM, [chunk({"content": "a"}), chunk(metrics={"speculative_decoding": counts}), DONE])
    )
    assert reading.report is None
    assert reading.observed.accepted_histogram == list(stats.histogram)
    assert (reading.observed.num_proposed, reading.observed.num_accepted) == (6, 2)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (error_reply(429, "object", "too many"), "429: too many"),
        (error_reply(503, "flat", "busy"), "503: busy"),
        (Reply(500, (), (b"<html>",)), "500: <html>"),
        (Reply(200, STREAM, (chunk({"content": "a"}), event({"error": {"message": "lost"}}), DONE)), "lost"),
        (Reply(200, STREAM, (chunk({"content": "a"}),)), "the stream ended before its end marker"),
        (Reply(200, STREAM, (b"data: {no json\n\n", DONE)), "no stream of chunks: JSONDecodeError"),
        (Reply(200, STREAM, (b"data: [1]\n\n", DONE)), "no stream of chunks: AttributeError"),
        (Reply(200, STREAM, (chunk({"content": "a"}), 0.05, Fault.RESET)), "ClientPayloadError"),
        (Reply(200, STREAM, (Fault.GARBAGE,)), "ClientResponseError"),
        (Reply(200, STREAM, (chunk({"content": "a"}), Fault.HANG)), "timeout"),
    ],
)
async def test_every_failure_is_in_the_answer(reply: Reply, problem: str) -> None:
    """None is raised, and none passes for an answer."""
    answer, reading = await asked(reply, timeout_s=1.0)
    assert reading.error is not None and problem in reading.error
    assert answer.end_s >= answer.sent_s > 0


async def test_nobody_listens() -> None:
    """A refused connection is a failure like others, without a status."""
    async with ScriptedLane() as lane:
        url = lane.url
    async with aiohttp.ClientSession() as session:
        answer = await ask(session, f"{url}/v1/chat/completions", {})
    assert answer.status is None and "Connect" in (read(answer).error or "")


def test_an_outrider_is_told_by_its_headers() -> None:
    """And says how long a request waited."""
    answer = Answer(0.0, headers={"x-outrider-drafter": "off", "x-outrider-queue-ms": "12.5"})
    assert answer.is_outrider and answer.queue_s == pytest.approx(0.0125)
    assert not Answer(0.0).is_outrider and Answer(0.0).queue_s is None
