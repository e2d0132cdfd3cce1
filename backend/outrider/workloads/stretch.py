"""One arm's turn of load: jobs asked when they are due, or as soon as another ends, and a record of every request."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from outrider.workloads.exchange import Answer, Reading, read
from outrider.workloads.results import Arm, Record, Step
from outrider.workloads.suite import Job
from outrider.workloads.target import Target
from outrider.workloads.watch import Seen, watching

#: Between two connections that a closed loop opens: the kernel's queue of new ones is short, and streams that begin
#: in one moment would send their events in one moment for ever.
OPENING_S = 0.0011


@dataclass(frozen=True, slots=True)
class Due:
    """A job of a round."""

    number: int
    job: Job
    at_s: float | None = None
    """Seconds from the beginning of the stretch; None in a closed loop."""


@dataclass(slots=True)
class Turn:
    """What the jobs of a stretch share."""

    target: Target
    arm: Arm
    round: int
    seed: int
    is_exact_length: bool
    on_job: Callable[[list[Record]], None]
    """Called with the records of a job that ended."""
    began_s: float = 0.0
    """`time.monotonic()`"""


@dataclass(frozen=True, slots=True)
class _Told:
    """One turn of a conversation: when it was due, and what came."""

    number: int
    at_s: float
    answer: Answer
    reading: Reading


async def run_stretch(turn: Turn, seen: Seen, dues: Sequence[Due], concurrency: int | None) -> None:
    """Until all jobs have ended; None for `concurrency` asks each when it is due. Cancelled, it drops open jobs."""
    async with watching(seen), _stoppable() as group:
        turn.began_s = time.monotonic()
        if concurrency is None:
            for due in dues:
                at_s = turn.began_s + (due.at_s or 0.0)
                await asyncio.sleep(max(at_s - time.monotonic(), 0.0))
                group.create_task(_run_job(turn, due, at_s, seen))
        else:
            waiting = deque(dues)
            for _ in range(min(concurrency, len(dues))):
                group.create_task(_loop(turn, waiting, seen))
                await asyncio.sleep(OPENING_S)


@asynccontextmanager
async def _stoppable() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks whose single failure comes out as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _loop(turn: Turn, waiting: deque[Due], seen: Seen) -> None:
    """One of the streams of a closed loop."""
    at_s = time.monotonic()
    while waiting:
        at_s = await _run_job(turn, waiting.popleft(), at_s, seen)


async def _run_job(turn: Turn, due: Due, at_s: float, seen: Seen) -> float:
    """All turns of a conversation; the moment at which the last answer ended."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": due.job.text}]
    records: list[Record] = []
    said = deque(due.job.then)
    for number in range(due.job.max_turns):
        answer = await turn.target.ask(_body(turn, due, messages, number))
        reading = read(answer)
        seen.late_s.append(answer.sent_s - at_s)
        records.append(_record(turn, due, messages, _Told(number, at_s, answer, reading)))
        at_s = answer.end_s
        if reading.error is not None or not _go_on(messages, reading, due.job, said):
            break
    turn.on_job(records)
    return at_s


def _go_on(messages: list[dict[str, Any]], reading: Reading, job: Job, said: deque[str]) -> bool:
    """Add the answer and what follows it, the tools' answers or the user's next words; False when nothing does."""
    message = reading.message
    messages.append(message)
    answers = {tool.name: tool.answer for tool in job.tools}
    for call in message.get("tool_calls", ()):
        content = answers.get(call["function"]["name"], "error: there is no such tool")
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    if message.get("tool_calls"):
        return True
    if said:
        messages.append({"role": "user", "content": said.popleft()})
        return True
    return False


def _body(turn: Turn, due: Due, messages: list[dict[str, Any]], number: int) -> dict[str, Any]:
    job = due.job
    # The same for all arms, so that sampled answers have the same noise.
    seed = turn.seed + 7919 * turn.round + 101 * due.number + number
    body: dict[str, Any] = {"messages": messages, "temperature": job.temperature, "max_tokens": job.max_tokens}
    body["seed"] = seed
    if job.prediction is not None and number == 0:
        body["prediction"] = {"type": "content", "content": job.prediction}
    if job.response_format is not None:
        body["response_format"] = job.response_format
    if job.tools:
        body |= {
            "tools": [tool.wire for tool in job.tools],
            "tool_choice": job.tool_choice if number == 0 else "auto",
        }
    if turn.is_exact_length:
        body["ignore_eos"] = True
    if turn.target.is_outrider:
        body["outrider"] = {"task": job.task, **turn.arm.hints}
    return body


def _record(turn: Turn, due: Due, messages: list[dict[str, Any]], told: _Told) -> Record:
    answer, reading, report = told.answer, told.reading, told.reading.report
    return Record(
        arm=turn.arm.name, round=turn.round, number=due.number, turn=told.number,
        prompt=due.job.name, task=due.job.task, asked=hashlib.sha256(orjson.dumps(messages)).hexdigest()[:16],
        temperature=due.job.temperature, max_tokens=due.job.max_tokens,
        intended_s=told.at_s - turn.began_s, sent_s=answer.sent_s - turn.began_s, end_s=answer.end_s - turn.began_s,
        steps=[Step(at_s=moment_s - turn.began_s, num_tokens=num) for moment_s, num in reading.steps],
        status=answer.status, error=reading.error, queue_s=answer.queue_s, finish_reason=reading.finish_reason,
        num_prompt_tokens=reading.usage.get("prompt_tokens"), num_tokens=reading.usage.get("completion_tokens"),
        requested=None if report is None else report.requested,
        effective=None if report is None else report.effective,
        observed=reading.observed, text=reading.whole_text,
    )  # fmt: skip
