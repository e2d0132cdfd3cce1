"""What the client returns: answers with their headers, and the events of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from outrider.core import Report
from outrider.errors import ConnectionFailed
from outrider.sdk.wire import Answer, Message, OutputItem, ResponseBody, ResponseUsage, ToolCall, Usage

W = TypeVar("W", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of an answer, names in lower case.

    Example::

        print(result.head.status, result.head.headers.get("x-outrider-lane"))
    """

    status: int
    headers: Mapping[str, str]
    num_retries: int = 0
    """Attempts before the one that succeeded."""

    @property
    def request_id(self) -> str | None:
        """The `x-request-id` of the answer."""
        return self.headers.get("x-request-id")


@dataclass(frozen=True, slots=True)
class RawResponse:
    """An answer as it came, of a route that has no method of its own.

    Example::

        response = await client.request("GET", "/outrider/runs")
        print(response.head.request_id, response.json())
    """

    head: Head
    body: bytes

    def json(self) -> Any:
        """The body as JSON; ConnectionFailed when it is none."""
        return parse_json(self.body)


@dataclass(frozen=True, slots=True)
class ChatResult:
    """A finished answer of chat or completions.

    Example::

        result = await client.chat("Write a haiku.", temperature=1.2)
        print(result.text, result.report.effective.k if result.report else None)
    """

    message: Message
    """As the assistant wrote it; unknown fields are in its `model_extra`."""
    finish_reason: str | None
    """`stop`, `length`, `tool_calls`, ...; None when the server gave none."""
    usage: Usage | None
    report: Report | None
    """How the request was speculated; None from a server that is not Outrider."""
    head: Head
    raw: dict[str, Any]
    """The body as the server wrote it; of a stream, the last value of each top-level field but `choices`."""

    @property
    def text(self) -> str:
        """The message's text; empty when there is none."""
        return self.message.content or ""

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tools that the model calls, in its order."""
        return self.message.tool_calls or []

    @property
    def request_id(self) -> str | None:
        """The `x-request-id` of the answer."""
        return self.head.request_id

    @classmethod
    def read(cls, response: RawResponse) -> ChatResult:
        """ConnectionFailed when the body is no completion."""
        raw = response.json()
        answer = parsed(Answer, raw)
        choice = answer.choices[0]
        message = choice.message if choice.text is None else Message(content=choice.text)
        return cls(message, choice.finish_reason, answer.usage, answer.outrider, response.head, raw)


@dataclass(frozen=True, slots=True)
class Response:
    """A finished answer of the responses route.

    Example::

        response = await client.responses("Say hello.", max_tokens=8)
        print(response.id, response.status, response.text)
    """

    id: str
    status: str | None
    """`completed`, `incomplete`, `failed`; in the background also `queued`, `in_progress`, `cancelled`."""
    output: list[OutputItem]
    usage: ResponseUsage | None
    error: dict[str, Any] | None
    """What one says that failed or was cancelled; as the `error` of an answer."""
    report: Report | None
    """As of `ChatResult`; None also where the route carries no report."""
    head: Head
    raw: dict[str, Any]

    @property
    def text(self) -> str:
        """The texts of its messages, joined."""
        parts = [part for item in self.output if item.type == "message" for part in item.content or []]
        return "".join(part.get("text", "") for part in parts if part.get("type") == "output_text")

    @property
    def request_id(self) -> str | None:
        """The `x-request-id` of the answer."""
        return self.head.request_id

    @classmethod
    def read(cls, raw: dict[str, Any], head: Head) -> Response:
        """ConnectionFailed when `raw` is no response."""
        body = parsed(ResponseBody, raw)
        return cls(body.id, body.status, body.output, body.usage, body.error, body.outrider, head, raw)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text.

    Example::

        async for event in stream:
            if isinstance(event, TextDelta):
                print(event.text, event.num_accepted)
    """

    text: str
    num_tokens: int | None = None
    """Tokens in this piece; None unless the server counts as it goes (`counts_tokens`)."""
    num_accepted: int | None = None
    """Draft tokens among them; None where they are not counted, or when nothing was speculated."""


@dataclass(frozen=True, slots=True)
class OtherDelta:
    """More of something that is not text: tool calls, reasoning.

    Example::

        if isinstance(event, OtherDelta):
            print(event.fields.get("tool_calls"))
    """

    fields: Mapping[str, Any]
    """The delta's fields that are not null, without `role` and `content`."""
    num_tokens: int | None = None
    """As of `TextDelta`; None also where the same piece has text, which counts them."""
    num_accepted: int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a stream; fields as in `ChatResult`.

    Example::

        if isinstance(event, Finished) and event.report and event.report.observed:
            print(event.report.observed.accept_length)
    """

    finish_reason: str | None
    usage: Usage | None
    report: Report | None


StreamEvent = TextDelta | OtherDelta | Finished


def parse_json(data: bytes) -> Any:
    """JSON of a good answer; ConnectionFailed when it is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ConnectionFailed(f"the server's answer is not JSON: {error}") from error


def parsed(kind: type[W], value: object) -> W:
    """ConnectionFailed when `value` has another form."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise ConnectionFailed(f"the server's answer has an unexpected form: {error}") from error
