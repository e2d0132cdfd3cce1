"""One streamed request to any OpenAI-compatible target: its bytes with their moments first, their meaning afterwards.

Nothing is parsed while bytes come, so that a thousand streams are read in time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from pydantic import ValidationError

from outrider.core import Observed, Report
from outrider.sse import DONE, SSEDecoder, SSEError

QUEUE = "x-outrider-queue-ms"
#: What an answer of an Outrider has among its headers.
_OURS = "x-outrider-drafter"


@dataclass(slots=True)
class Answer:
    """What came; moments are `time.monotonic()`."""

    sent_s: float
    end_s: float = 0.0
    status: int | None = None
    error: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def is_outrider(self) -> bool:
        """Whether the server says that it is one of ours."""
        return _OURS in self.headers

    @property
    def queue_s(self) -> float | None:
        """None where the target does not say."""
        told = self.headers.get(QUEUE)
        return None if told is None else float(told) / 1000


async def ask(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> Answer:
    """Post and read to the end; every failure is in the answer. The session bears key and timeouts."""
    raw = orjson.dumps(body)
    answer = Answer(time.monotonic())
    try:
        async with session.post(url, data=raw, headers={"Content-Type": "application/json"}) as response:
            answer.status, answer.headers = response.status, response.headers
            while data := await response.content.readany():
                answer.pieces.append((time.monotonic(), data))
    except TimeoutError:
        answer.error = "timeout"
    except (aiohttp.ClientError, OSError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        answer.end_s = time.monotonic()
    if answer.status is not None and answer.status >= 400:
        answer.error = _failure(answer.status, b"".join(data for _, data in answer.pieces))
    return answer


def _failure(status: int, body: bytes) -> str:
    shown = body[:200].decode(errors="replace")
    try:
        error = orjson.loads(body)
        error = error.get("error", error)
        code, message = error.get("code"), error.get("message") or shown
    except (orjson.JSONDecodeError, AttributeError):
        return f"{status}: {shown}"
    return f"{status} {code}: {message}" if code not in (None, status) else f"{status}: {message}"


@dataclass(slots=True)
class Reading:
    """What the bytes of an answer mean."""

    steps: list[tuple[float, int | None]] = field(default_factory=list)
    """Moment of each event that brought something, and its tokens where the target counts as it goes."""
    text: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    num_counted: int = 0
    """Tokens of the steps so far."""
    report: Report | None = None
    observed: Observed | None = None
    """Of a report, or of vLLM's `metrics.speculative_decoding`."""
    error: str | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's, for the next turn."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.text)}
        calls = [self.calls[index] for index in sorted(self.calls)]
        return message | ({"tool_calls": calls} if calls else {})

    @property
    def whole_text(self) -> str:
        """With the JSON of its calls."""
        calls = [call["function"] for _, call in sorted(self.calls.items())]
        return "".join(self.text) + (orjson.dumps(calls).decode() if calls else "")

    def take(self, at_s: float, chunk: dict[str, Any]) -> None:
        """One event's JSON."""
        if chunk.get("error") is not None:
            error = chunk["error"]
            self.error = str(error.get("message") or error) if isinstance(error, dict) else str(error)
        usage = chunk.get("usage") or {}
        count, before = usage.get("completion_tokens"), self.num_counted
        self.usage |= usage
        brought = [self._take_choice(choice) for choice in chunk.get("choices") or ()]
        if any(brought) or (self.steps and brought and count is not None and count > before):
            self.steps.append((at_s, None if count is None else count - before))
            self.num_counted = count or before
        self._take_report(chunk)

    def _take_choice(self, choice: dict[str, Any]) -> bool:
        """Whether it brought anything that was written."""
        delta = choice.get("delta") or {"content": choice.get("text")}
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if content := delta.get("content"):
            self.text.append(content)
        for call in delta.get("tool_calls") or ():
            self._take_call(call)
        # SGLang's and vLLM's names of what a model thinks.
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        return bool(content or delta.get("tool_calls") or thought)

    def _take_call(self, wire: dict[str, Any]) -> None:
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call, function = self.calls.setdefault(wire.get("index", 0), empty), wire.get("function") or {}
        call["id"] = wire.get("id") or call["id"]
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""

    def _take_report(self, chunk: dict[str, Any]) -> None:
        if chunk.get("outrider") is not None:
            self.report = Report.model_validate(chunk["outrider"])
            self.observed = self.report.observed
        counts = (chunk.get("metrics") or {}).get("speculative_decoding")
        if counts and self.report is None:
            self.observed = Observed(
                num_verify_steps=counts["num_spec_steps"],
                num_proposed=counts.get("num_draft_tokens"),
                num_accepted=counts["num_accepted_draft_tokens"],
                accept_length=counts["mean_acceptance_length"],
                accepted_histogram=counts.get("acceptance_histogram") or [],
            )


def read(answer: Answer) -> Reading:
    """Parse what came. What is no stream of chunks, or ends before its end marker, is an error of the reading."""
    reading, decoder, is_done = Reading(error=answer.error), SSEDecoder(), False
    if answer.error is not None:
        return reading
    try:
        for at_s, data in answer.pieces:
            for event in decoder.feed(data):
                if event.data == DONE:
                    is_done = True
                elif event.data is not None:
                    reading.take(at_s, orjson.loads(event.data))
    except (SSEError, orjson.JSONDecodeError, ValidationError, AttributeError, KeyError, TypeError) as error:
        reading.error = f"no stream of chunks: {type(error).__name__}: {error}"
    if reading.error is None and not is_done:
        reading.error = "the stream ended before its end marker"
    return reading
