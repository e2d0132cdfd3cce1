"""Answer bodies of the engine's routes, in SGLang's shapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from outrider.core import SpecStats
from outrider.engine.calls import Call, CallReader
from outrider.engine.engine import Output
from outrider.engine.logprobs import TokenLogprob, chat_logprobs, completion_logprobs
from outrider.engine.protocol import Parsed
from outrider.engine.sequence import Finish
from outrider.errors import APIError

DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def error_body(error: APIError) -> dict[str, Any]:
    """SGLang's flat error object, with our code in place of its repeated status."""
    kind = "BadRequestError" if error.status < 500 else "InternalServerError"
    return {"object": "error", "message": error.message, "type": kind, "param": error.param, "code": error.code}


def spec_details(stats: SpecStats, num_completion_tokens: int) -> dict[str, Any]:
    """The `spec_*` fields; `spec_accept_length` counts the first token too, as SGLang's does."""
    proposed = stats.num_proposed or 0
    return {
        "spec_accept_rate": stats.num_accepted / proposed if proposed else 0.0,
        "spec_accept_length": num_completion_tokens / stats.num_verify_steps,
        "spec_num_correct_drafts": stats.num_accepted,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": stats.num_verify_steps,
        "spec_correct_drafts_histogram": list(stats.histogram),
        "spec_correct_by_draft": list(stats.by_draft or ()),
    }


@dataclass(slots=True)
class Answer:
    """What one choice of a request has produced so far."""

    parsed: Parsed
    model: str
    index: int = 0
    created: int = field(default_factory=lambda: int(time.time()))
    started_s: float = field(default_factory=time.monotonic)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    stats: SpecStats | None = None
    num_drafter_failures: int = 0
    num_near_ties: int | None = 0
    """None when it is unknown of a part."""
    num_cached: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reader: CallReader | None = None
    """Reads calls of tools from the text; None when there are no tools."""
    calls: list[Call] = field(default_factory=list)
    news: tuple[str, list[Call]] = ("", [])
    """Text and calls of the last output."""
    num_accepted: int | None = None

    def add(self, output: Output) -> None:
        """Take in what a step gave this choice; `news` is what can be told of it."""
        self.news = output.text, []
        if self.reader is not None:
            self.news = self.reader.append(output.text, is_last=output.finish is not None)
        self.text += self.news[0]
        self.calls += self.news[1]
        self.num_accepted = output.num_accepted
        self.token_ids.extend(output.token_ids)
        self.finish = output.finish
        self.stats = output.stats
        self.num_drafter_failures = output.num_drafter_failures
        if self.num_near_ties is not None:
            self.num_near_ties = None if output.near_ties is None else self.num_near_ties + len(output.near_ties)
        self.num_cached = output.num_cached
        self.logprobs.extend(output.logprobs)

    @property
    def spec_details(self) -> dict[str, Any] | None:
        """None when nothing was verified."""
        if self.stats is None:
            return None
        return {**spec_details(self.stats, len(self.token_ids)), "num_near_ties": self.num_near_ties}

    def _ended(self) -> dict[str, Any]:
        assert self.finish is not None
        kind = "tool_calls" if self.calls and self.finish.kind == "stop" else self.finish.kind
        return {"finish_reason": kind, "matched_stop": self.finish.matched}


def answers_of(parsed: Parsed, model: str) -> list[Answer]:
    """One empty answer for each choice."""
    is_single = parsed.request.ends_with_call
    return [
        Answer(parsed, model, index, reader=CallReader(is_single=is_single) if parsed.has_tools else None)
        for index in range(parsed.num_choices)
    ]


def are_unfinished(answers: Sequence[Answer]) -> bool:
    """Whether any choice still grows."""
    return any(answer.finish is None for answer in answers)


def _usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """The prompt counts once, and as cached what the first choice found; completions are summed."""
    request = answers[0].parsed.request
    prompt, completion = len(request.prompt_ids), sum(len(answer.token_ids) for answer in answers)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": answers[0].num_cached},
    }
    verified = [answer.stats for answer in answers if answer.stats is not None]
    if verified and request.plan.drafter == "prediction":
        accepted = sum(stats.num_accepted for stats in verified)
        usage["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(stats.num_proposed or 0 for stats in verified) - accepted,
        }
    return usage


def _running_usage(answer: Answer) -> dict[str, Any]:
    """Of one choice so far; drafts are counted beside OpenAI's own details."""
    usage = _usage([answer])
    if answer.num_accepted is not None:
        details = usage.get("completion_tokens_details", {})
        usage["completion_tokens_details"] = {**details, "accepted_draft_tokens": answer.num_accepted}
    return usage


def _sglext(answers: Sequence[Answer]) -> dict[str, Any] | None:
    """A list for several choices; None when it was not asked for, or when nothing was verified."""
    details = [answer.spec_details for answer in answers]
    if not answers[0].parsed.has_spec_details or not any(details):
        return None
    return {"spec_tokens_details": details if len(details) > 1 else details[0]}


@dataclass(frozen=True, slots=True)
class Shape:
    """What differs between the two OpenAI routes."""

    name: str
    chunk_name: str
    whole: Callable[[str], dict[str, Any]]
    """Part of the choice that carries a whole text."""
    delta: Callable[[str], dict[str, Any]]
    """Part of the choice that carries one step's text."""
    opening: dict[str, Any] | None
    closing: dict[str, Any]
    logprobs: Callable[[Answer, Sequence[TokenLogprob]], dict[str, Any]]
    """The choice's log probabilities of the answer's last tokens."""


def _completion_logprobs(answer: Answer, last: Sequence[TokenLogprob]) -> dict[str, Any]:
    text = answer.parsed.token_text
    earlier = answer.logprobs[: len(answer.logprobs) - len(last)]
    return completion_logprobs(last, text, sum(len(text(t.token_id)) for t in earlier))


CHAT = Shape(
    name="chat.completion",
    chunk_name="chat.completion.chunk",
    whole=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    delta=lambda text: {"delta": {"content": text}},
    opening={"delta": {"role": "assistant", "content": ""}},
    closing={"delta": {}},
    logprobs=lambda answer, last: chat_logprobs(last, answer.parsed.token_text),
)
COMPLETION = Shape(
    name="text_completion",
    chunk_name="text_completion",
    whole=lambda text: {"text": text},
    delta=lambda text: {"text": text},
    opening=None,
    closing={"text": ""},
    logprobs=_completion_logprobs,
)


def whole_body(answers: Sequence[Answer], shape: Shape) -> dict[str, Any]:
    """The answer of a request that does not stream."""
    choices = [
        {
            "index": answer.index,
            **_whole(answer, shape),
            "logprobs": _logprobs(answer, shape, answer.logprobs),
            **answer._ended(),
        }
        for answer in answers
    ]
    body = {**_head(answers[0], shape.name), "choices": choices, "usage": _usage(answers)}
    sglext = _sglext(answers)
    return body if sglext is None else {**body, "sglext": sglext}


def _whole(answer: Answer, shape: Shape) -> dict[str, Any]:
    part = shape.whole(answer.text)
    if answer.calls:
        calls = [call.to_wire() for call in answer.calls]
        part["message"] |= {"content": answer.text or None, "tool_calls": calls}
    return part


def opening_events(answer: Answer, shape: Shape) -> bytes:
    """What OpenAI's chat streams begin with; nothing for other shapes."""
    return b"" if shape.opening is None else _chunk(answer, shape, shape.opening)


def delta_events(answer: Answer, shape: Shape, output: Output) -> bytes:
    """A chunk for the output that was just added; tokens whose text is held back still have log probabilities."""
    text, calls = answer.news
    if not text and not calls and not output.logprobs:
        return b""
    part = shape.delta(text) | {"logprobs": _logprobs(answer, shape, output.logprobs)}
    if calls:
        first = len(answer.calls) - len(calls)
        told = [call.to_wire(first + i) for i, call in enumerate(calls)]
        part["delta"] = {"content": text or None, "tool_calls": told}
    usage = {"usage": _running_usage(answer)} if answer.parsed.has_running_usage else {}
    return _chunk(answer, shape, part, beside=usage)


def _logprobs(answer: Answer, shape: Shape, last: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    return None if answer.parsed.request.num_top_logprobs is None else shape.logprobs(answer, last)


def finish_event(answer: Answer, shape: Shape) -> bytes:
    """A choice's last chunk; of an aborted one it says why, in the place where SGLang reports errors of streams."""
    assert answer.finish is not None
    finish, error = answer.finish, {}
    if finish.kind == "abort":
        error = {"error": {"object": "error", "message": finish.message, "code": finish.status}}
    return _chunk(answer, shape, shape.closing, answer._ended(), error)


def closing_events(answers: Sequence[Answer], shape: Shape) -> bytes:
    """Statistics chunk and usage chunk where asked for, and the end."""
    events = b""
    head = _head(answers[0], shape.chunk_name)
    sglext = _sglext(answers)
    if sglext is not None:
        events += event({**head, "choices": [], "sglext": sglext})
    if answers[0].parsed.has_usage_chunk:
        events += event({**head, "choices": [], "usage": _usage(answers)})
    return events + DONE


def _head(answer: Answer, name: str) -> dict[str, Any]:
    return {"id": answer.parsed.request.rid, "object": name, "created": answer.created, "model": answer.model}


def _chunk(
    answer: Answer,
    shape: Shape,
    part: dict[str, Any],
    ended: Mapping[str, Any] = MappingProxyType({"finish_reason": None, "matched_stop": None}),
    beside: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    choice = {"index": answer.index, "logprobs": None, **part, **ended}
    return event({**_head(answer, shape.chunk_name), "choices": [choice], **beside})
