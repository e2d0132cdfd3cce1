"""The server's JSON as types; unknown fields are kept at every level."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.core import Report


class WireObject(BaseModel):
    """Base of what the server writes; unknown fields are kept in `model_extra`."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Usage(WireObject):
    """Token counts of one request.

    Example::

        cached = (usage.model_extra or {}).get("prompt_tokens_details")
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Model(WireObject):
    """A model that the server offers.

    Example::

        names = [model.id for model in await client.models()]
    """

    id: str


class ModelList(WireObject):
    """Body of `/models`."""

    data: list[Model]


class FunctionCall(WireObject):
    """What a tool is called with, as the model wrote it: `arguments` is JSON, or was meant to be.

    Example::

        arguments = json.loads(call.function.arguments)
    """

    name: str = ""
    arguments: str = ""


class ToolCall(WireObject):
    """One call of a tool; its answer goes back in a message with this `tool_call_id`.

    Example::

        told = {"role": "tool", "tool_call_id": call.id, "content": "42"}
    """

    id: str = ""
    type: str = "function"
    function: FunctionCall = FunctionCall()


class Message(WireObject):
    """The assistant's message, or the part of one that a chunk carries.

    Example::

        thought = (result.message.model_extra or {}).get("reasoning_content")
    """

    content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(WireObject):
    """The one choice of a whole answer, of chat (`message`) or of completions (`text`)."""

    message: Message = Message()
    text: str | None = None
    finish_reason: str | None = None


class Answer(WireObject):
    """A whole answer of chat or completions."""

    choices: Annotated[list[Choice], Field(min_length=1)]
    usage: Usage | None = None
    outrider: Report | None = None


class Delta(WireObject):
    """The part of a message that a chunk carries."""

    content: str | None = None


class ChunkChoice(WireObject):
    """The one choice of a chunk, of chat (`delta`) or of completions (`text`)."""

    delta: Delta = Delta()
    text: str | None = None
    finish_reason: str | None = None


class Chunk(WireObject):
    """One event of a stream."""

    choices: list[ChunkChoice] = []
    usage: Usage | None = None
    outrider: Report | None = None


class ResponseUsage(WireObject):
    """Token counts of one response.

    Example::

        total = response.usage.total_tokens if response.usage else None
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int


class OutputItem(WireObject):
    """One item of a response: a message with `content`, a function call, reasoning; told apart by `type`.

    Example::

        calls = [item for item in response.output if item.type == "function_call"]
    """

    type: str
    content: list[dict[str, Any]] | None = None


class ResponseBody(WireObject):
    """Body of `/responses`."""

    id: str
    status: str | None = None
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    error: dict[str, Any] | None = None
    outrider: Report | None = None


class ResponseEvent(WireObject):
    """One event of a streamed response, as the server wrote it; told apart by `type`.

    Example::

        async for event in stream:
            if event.type == "response.output_text.delta":
                print(event.delta, end="")
    """

    type: str
    sequence_number: int | None = None
    delta: Any = None
    """What is new, in events whose type ends in `.delta`."""


class InputItem(WireObject):
    """One item of what a response was asked; told apart by `type`.

    Example::

        texts = [item.content for item in await client.responses.input_items("resp_1") if item.type == "message"]
    """

    id: str
    type: str = "message"
    content: Any = None


class InputPage(WireObject):
    """Body of `/responses/{id}/input_items`."""

    data: list[InputItem]
    has_more: bool = False


class Run(WireObject):
    """A run in the background, as it is now. Times are seconds since the epoch, None while they lie ahead.

    Example::

        run = await client.runs.get("run_0123")
        if run.is_over and run.error:
            print(run.status, run.error["message"])
    """

    id: str
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled"]
    created_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    expires_at: float | None = None
    request_id: str | None = None
    """The `x-request-id` of the call that began it."""
    num_events: int = 0
    """Events so far, numbered from 1."""
    error: dict[str, Any] | None = None
    """What a run that failed or was cancelled says; as the `error` of an answer."""
    answer: Any = None
    """The whole answer as JSON, where the run was asked for one object rather than a stream."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.status not in ("queued", "in_progress")
