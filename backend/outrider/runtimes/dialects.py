"""How each generation route is written: where a body has the plan and the id, how answers end, count and fail."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import orjson

from outrider.errors import APIError
from outrider.policy.plan import Plan
from outrider.runtimes import protocol
from outrider.runtimes.splice import splice, splice_inside, value_of

GENERATE = "/generate"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"


class Dialect:
    """OpenAI's chat and text completions; the other routes differ in what they override."""

    #: False: the route's bodies cannot name a plan, so the lane runs what it was launched with.
    carries_plan: ClassVar[bool] = True
    #: False: the stream is over with its last event and no [DONE] follows.
    ends_with_done: ClassVar[bool] = True
    #: True: every choice brings its own counts, which add up; False: one object has them all.
    counts_add_up: ClassVar[bool] = False
    #: What a chunk that carries nothing but text does not match; quotes are escaped inside a JSON string.
    _matters: ClassVar[re.Pattern[bytes]] = protocol.MATTERS

    def body(
        self, raw: bytes, plan: Plan, rid: str, model: str | None, keys: Collection[str] | None
    ) -> tuple[bytes, str | None]:
        """The lane's body, every other byte as in `raw`, and the id by which it can be aborted, None without one.

        `keys` as for `splice`.
        """
        add = {
            "custom_params": _with_plan(raw, plan, keys),
            "return_spec_tokens_details": b"true",
            "rid": orjson.dumps(rid),
        }
        return _spliced(raw, add, model, keys), rid

    def can_matter(self, data: bytes) -> bool:
        """False for chunks that carry nothing but text: they need no parsing."""
        return self._matters.search(data) is not None

    def raise_failure(self, chunk: Mapping[str, Any]) -> None:
        """Raise what a chunk or a body of status 200 reports as failed."""
        protocol.raise_failure(chunk)

    def num_finished(self, chunk: Mapping[str, Any]) -> int:
        """How many choices end in this chunk."""
        return protocol.num_finished(chunk)

    def has_text(self, chunk: Mapping[str, Any]) -> bool:
        """Whether the chunk is a part of a choice."""
        return bool(protocol.choices_of(chunk))

    def completion_tokens(self, chunk: Mapping[str, Any]) -> int | None:
        """Tokens generated, where the chunk counts them."""
        return protocol.completion_tokens(chunk)

    def text(self, answer: Mapping[str, Any]) -> str | None:
        """What a whole answer's first choice says; None where that is no text."""
        for choice in protocol.choices_of(answer)[:1]:
            message = choice.get("message")
            text = message.get("content") if isinstance(message, dict) else choice.get("text")
            return text if isinstance(text, str) else None
        return None

    def streamed_text(self, chunks: Sequence[Mapping[str, Any]]) -> str:
        """What the chunks of a stream with one choice say together."""
        return "".join(part for part in map(self._part, chunks) if isinstance(part, str))

    def _part(self, chunk: Mapping[str, Any]) -> object:
        for choice in protocol.choices_of(chunk):
            delta = choice.get("delta")
            return delta.get("content") if isinstance(delta, dict) else choice.get("text")
        return None

    def details(self, chunk: Mapping[str, Any]) -> list[Any] | None:
        """Counts of speculation, one entry a choice; None when the chunk has none."""
        sglext = chunk.get("sglext")
        if not isinstance(sglext, dict) or protocol.DETAILS not in sglext:
            return None
        found = sglext[protocol.DETAILS]
        return found if isinstance(found, list) else [found]

    def error_body(self, error: APIError) -> dict[str, Any]:
        """The body of an answer that is an error."""
        return error.to_wire()

    def error_event(self, error: APIError) -> bytes:
        """How a failure is told once the head is out."""
        return b"data: " + orjson.dumps(self.error_body(error)) + b"\n\n"


class _Generate(Dialect):
    """SGLang's own route: the plan is inside `sampling_params`, counts are in `meta_info`, texts are cumulative."""

    counts_add_up = True

    def body(
        self, raw: bytes, plan: Plan, rid: str, model: str | None, keys: Collection[str] | None
    ) -> tuple[bytes, str | None]:
        """Without `model`, which picks the group of lanes here and is refused there."""
        params = value_of(raw, "sampling_params", keys) or b"{}"
        inner = {"custom_params": _with_plan(params if params.startswith(b"{") else b"{}", plan, None)}
        add = {
            "sampling_params": splice_inside(raw, "sampling_params", set(inner), inner, keys),
            "rid": orjson.dumps(rid),
        }
        return splice(raw, {"outrider", "model", *add}, add, keys), rid

    def raise_failure(self, chunk: Mapping[str, Any]) -> None:
        error = chunk.get("error")
        protocol.raise_failure({} if error is None else {"error": error})
        protocol.raise_failure({"choices": [_meta(chunk)]})

    def num_finished(self, chunk: Mapping[str, Any]) -> int:
        return int(_meta(chunk).get("finish_reason") is not None)

    def has_text(self, chunk: Mapping[str, Any]) -> bool:
        return "meta_info" in chunk

    def completion_tokens(self, chunk: Mapping[str, Any]) -> int | None:
        count = _meta(chunk).get("completion_tokens")
        return count if isinstance(count, int) else None

    def text(self, answer: Mapping[str, Any]) -> str | None:
        return _joined([answer])

    def streamed_text(self, chunks: Sequence[Mapping[str, Any]]) -> str:
        texts = [chunk["text"] for chunk in chunks if isinstance(chunk.get("text"), str)]
        return texts[-1] if texts else ""

    def details(self, chunk: Mapping[str, Any]) -> list[Any] | None:
        return [_meta(chunk)] if self.num_finished(chunk) and "spec_verify_ct" in _meta(chunk) else None


class _Responses(Dialect):
    """OpenAI's responses: SGLang takes the id as `request_id`, no plan, and gives no counts of speculation."""

    carries_plan = False
    ends_with_done = False
    _matters = re.compile(
        protocol.MATTERS.pattern + rb'|"type"\s*+:\s*+"(?:error|response\.(?:completed|incomplete|failed))"'
    )

    def body(
        self, raw: bytes, plan: Plan, rid: str, model: str | None, keys: Collection[str] | None
    ) -> tuple[bytes, str | None]:
        own = f"resp_{rid}"
        return _spliced(raw, {"request_id": orjson.dumps(own)}, model, keys), own

    def raise_failure(self, chunk: Mapping[str, Any]) -> None:
        """Also of `response.failed`, whose error is inside; a stream's own error event carries it at the top."""
        if chunk.get("type") == "error":
            protocol.raise_failure({"error": chunk.get("error") or dict(chunk)})
        inner = chunk.get("response", chunk)
        protocol.raise_failure(inner if isinstance(inner, dict) else {})

    def num_finished(self, chunk: Mapping[str, Any]) -> int:
        return int(chunk.get("type") in ("response.completed", "response.incomplete"))

    def completion_tokens(self, chunk: Mapping[str, Any]) -> int | None:
        inner = chunk.get("response", chunk)
        return _output_tokens(inner) if isinstance(inner, dict) else None

    def text(self, answer: Mapping[str, Any]) -> str | None:
        said = [item for item in _objects(answer.get("output")) if item.get("type") == "message"]
        return _joined([part for item in said for part in _objects(item.get("content"))])

    def _part(self, chunk: Mapping[str, Any]) -> object:
        return chunk.get("delta") if chunk.get("type") == "response.output_text.delta" else None

    def error_event(self, error: APIError) -> bytes:
        fields = error.to_wire()["error"]
        return b"event: error\ndata: " + orjson.dumps(fields | {"type": "error"}) + b"\n\n"


class _Messages(Dialect):
    """Anthropic's messages: SGLang takes neither an id nor a plan; who leaves is noticed by the connection."""

    carries_plan = False
    ends_with_done = False
    _matters = re.compile(rb'"type"\s*+:\s*+"(?:message_|error")')

    #: Anthropic's names by status; every other 4xx is the caller's, every other 5xx the service's.
    _TYPES: ClassVar[Mapping[int, str]] = {
        401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
        429: "rate_limit_error", 503: "overloaded_error",
    }  # fmt: skip

    def body(
        self, raw: bytes, plan: Plan, rid: str, model: str | None, keys: Collection[str] | None
    ) -> tuple[bytes, str | None]:
        return _spliced(raw, {}, model, keys), None

    def num_finished(self, chunk: Mapping[str, Any]) -> int:
        return int(chunk.get("type") == "message_stop")

    def completion_tokens(self, chunk: Mapping[str, Any]) -> int | None:
        return _output_tokens(chunk)

    def text(self, answer: Mapping[str, Any]) -> str | None:
        return _joined(_objects(answer.get("content")))

    def _part(self, chunk: Mapping[str, Any]) -> object:
        delta = chunk.get("delta")
        return delta.get("text") if isinstance(delta, dict) else None

    def error_body(self, error: APIError) -> dict[str, Any]:
        """Anthropic's envelope; our code and parameter stand in it too."""
        kind = self._TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": error.to_wire()["error"] | {"type": kind}}

    def error_event(self, error: APIError) -> bytes:
        return b"event: error\n" + super().error_event(error)


_OPENAI = Dialect()
_OTHERS: Mapping[str, Dialect] = {GENERATE: _Generate(), RESPONSES: _Responses(), MESSAGES: _Messages()}


def dialect_of(path: str) -> Dialect:
    """How the route at `path` is written; OpenAI's completions unless it is one of the others."""
    return _OTHERS.get(path, _OPENAI)


def _with_plan(raw: bytes, plan: Plan, keys: Collection[str] | None) -> bytes:
    """`custom_params` of the object `raw`, with the plan in it."""
    ours = _wire_plan(plan)
    return splice_inside(raw, "custom_params", ours.keys(), ours, keys)


@lru_cache(maxsize=256)
def _wire_plan(plan: Plan) -> dict[str, bytes]:
    return {"outrider": orjson.dumps(plan.to_wire())}


def _spliced(raw: bytes, add: Mapping[str, bytes], model: str | None, keys: Collection[str] | None) -> bytes:
    """Our members in place of the client's; `model` sets it, None leaves it."""
    named = add if model is None else {**add, "model": orjson.dumps(model)}
    return splice(raw, {"outrider", *named}, named, keys)


def _meta(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = chunk.get("meta_info")
    return meta if isinstance(meta, dict) else {}


def _objects(value: object) -> list[dict[str, Any]]:
    """Those of a list; none of anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _joined(parts: Sequence[Mapping[str, Any]]) -> str | None:
    """Their texts; None where none has any."""
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return "".join(texts) if texts else None


def _output_tokens(chunk: Mapping[str, Any]) -> int | None:
    usage = chunk.get("usage")
    count = usage.get("output_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None
