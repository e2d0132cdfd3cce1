"""What the client returns: whole answers, the events of a stream, models; and how they are read off the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from outrider.core import Report


class WireObject(BaseModel):
    """Base of what the server writes; unknown fields are kept in `model_extra`."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Usage(WireObject):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Model(WireObject):
    """A model that the server offers."""

    id: str


@dataclass(frozen=True, slots=True)
class ChatResult:
    """A finished answer."""

    text: str
    finish_reason: str | None
    """`stop`, `length`, `tool_calls`, ...; None when the server gave none."""
    usage: Usage | None
    report: Report | None
    """How the request was speculated; None from a server that is not Outrider."""
    request_id: str | None
    """The `x-request-id` of the answer."""
    raw: dict[str, Any]
    """The body as the server wrote it; of a stream, the last value of each top-level field but `choices`."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text."""

    text: str
    num_tokens: int | None
    """Tokens in this piece; None unless the server counts as it goes (`continuous_usage_stats`)."""


@dataclass(frozen=True, slots=True)
class OtherDelta:
    """More of something that is not text: tool calls, reasoning."""

    fields: Mapping[str, Any]
    """The delta's fields that are not null, without `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a stream; fields as in `ChatResult`."""

    finish_reason: str | None
    usage: Usage | None
    report: Report | None


StreamEvent = TextDelta | OtherDelta | Finished


class ModelList(WireObject):
    """Body of `/models`."""

    data: list[Model]


class Message(WireObject):
    """A message, or the part of one that a chunk carries."""

    content: str | None = None


class Choice(WireObject):
    """The one choice of a whole answer."""

    message: Message
    finish_reason: str | None = None


class Answer(WireObject):
    """A whole answer."""

    choices: Annotated[list[Choice], Field(min_length=1)]
    usage: Usage | None = None
    outrider: Report | None = None


class ChunkChoice(WireObject):
    """The one choice of a chunk."""

    delta: Message = Message()
    finish_reason: str | None = None


class Chunk(WireObject):
    """One event of a stream."""

    choices: list[ChunkChoice] = []
    usage: Usage | None = None
    outrider: Report | None = None
