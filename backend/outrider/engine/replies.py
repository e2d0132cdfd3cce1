"""Answer bodies of the engine's routes, in SGLang's shapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from outrider.core import SpecStats
from outrider.engine.engine import Output
from outrider.engine.logprobs import TokenLogprob, chat_logprobs, completion_logprobs, generate_logprobs
from outrider.engine.protocol import Parsed
from outrider.engine.sequence import Finish
from outrider.errors import APIError

DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
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
    }


@dataclass(slots=True)
class Answer:
    """What a request has produced so far."""

    parsed: Parsed
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    started_s: float = field(default_factory=time.monotonic)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    stats: SpecStats | None = None
    num_drafter_failures: int = 0
    num_cached: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def add(self, output: Output) -> None:
        self.text += output.text
        self.token_ids.extend(output.token_ids)
        self.finish = output.finish
        self.stats = output.stats
        self.num_drafter_failures = output.num_drafter_failures
        self.num_cached = output.num_cached
        self.logprobs.extend(output.logprobs)

    @property
    def usage(self) -> dict[str, Any]:
        prompt, completion = len(self.parsed.request.prompt_ids), len(self.token_ids)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.num_cached},
        }
        if self.stats is not None and self.parsed.request.plan.drafter == "prediction":
            accepted = self.stats.num_accepted
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": (self.stats.num_proposed or 0) - accepted,
            }
        return usage

    @property
    def sglext(self) -> dict[str, Any] | None:
        """None when it was not asked for, or when nothing was verified."""
        if self.stats is None or not self.parsed.has_spec_details:
            return None
        return {"spec_tokens_details": spec_details(self.stats, len(self.token_ids))}

    def _ended(self) -> dict[str, Any]:
        assert self.finish is not None
        return {"finish_reason": self.finish.kind, "matched_stop": self.finish.matched}


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
    whole=lambda text: {"message": {"role": "assistant", "content": text}},
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


def whole_body(answer: Answer, shape: Shape) -> dict[str, Any]:
    """The answer of a request that does not stream."""
    logprobs = _logprobs(answer, shape, answer.logprobs)
    choice = {"index": 0, **shape.whole(answer.text), "logprobs": logprobs, **answer._ended()}
    body = {**_head(answer, shape.name), "choices": [choice], "usage": answer.usage}
    return body if answer.sglext is None else {**body, "sglext": answer.sglext}


def opening_events(answer: Answer, shape: Shape) -> bytes:
    return b"" if shape.opening is None else _chunk(answer, shape, shape.opening)


def delta_events(answer: Answer, shape: Shape, output: Output) -> bytes:
    """A chunk for the output that was just added; tokens whose text is held back still have log probabilities."""
    if not output.text and not output.logprobs:
        return b""
    part = shape.delta(output.text) | {"logprobs": _logprobs(answer, shape, output.logprobs)}
    return _chunk(answer, shape, part)


def _logprobs(answer: Answer, shape: Shape, last: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    return None if answer.parsed.request.num_top_logprobs is None else shape.logprobs(answer, last)


def closing_events(answer: Answer, shape: Shape) -> bytes:
    """Finish chunk, statistics chunk and usage chunk where asked for, and the end."""
    events = _chunk(answer, shape, shape.closing, answer._ended())
    head = _head(answer, shape.chunk_name)
    if answer.sglext is not None:
        events += event({**head, "choices": [], "sglext": answer.sglext})
    if answer.parsed.has_usage_chunk:
        events += event({**head, "choices": [], "usage": answer.usage})
    return events + DONE


def _head(answer: Answer, name: str) -> dict[str, Any]:
    return {"id": answer.parsed.request.rid, "object": name, "created": answer.created, "model": answer.model}


def _chunk(answer: Answer, shape: Shape, part: dict[str, Any], ended: dict[str, Any] | None = None) -> bytes:
    ended = ended or {"finish_reason": None, "matched_stop": None}
    choice = {"index": 0, "logprobs": None, **part, **ended}
    return event({**_head(answer, shape.chunk_name), "choices": [choice]})


def generate_body(answer: Answer) -> dict[str, Any]:
    """/generate: text and ids are cumulative; `spec_*` fields only on the finished answer of a verified request."""
    meta: dict[str, Any] = {
        "id": answer.parsed.request.rid,
        "finish_reason": None if answer.finish is None else finish_reason(answer.finish, len(answer.token_ids)),
        "prompt_tokens": len(answer.parsed.request.prompt_ids),
        "completion_tokens": len(answer.token_ids),
        "cached_tokens": answer.num_cached,
        "e2e_latency": time.monotonic() - answer.started_s,
    }
    if answer.stats is not None:
        meta |= spec_details(answer.stats, len(answer.token_ids))
    if answer.num_drafter_failures:
        meta["num_drafter_failures"] = answer.num_drafter_failures
    num_top = answer.parsed.request.num_top_logprobs
    if num_top is not None:
        text = answer.parsed.token_text if answer.parsed.has_logprob_texts else None
        meta |= generate_logprobs(answer.logprobs, text, has_top=num_top > 0)
    return {"text": answer.text, "output_ids": answer.token_ids, "meta_info": meta}


def finish_reason(finish: Finish, num_tokens: int) -> dict[str, Any]:
    if finish.kind == "length":
        return {"type": "length", "length": num_tokens}
    if finish.kind == "abort":
        return {"type": "abort", "message": finish.message, "status_code": finish.status, "err_type": None}
    return {"type": "stop", "matched": finish.matched}
