"""The body of /v1/chat/completions: messages and tools, checked field by field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, field_validator

from outrider.engine.bodies import OpenAIBody, RequestObject, TextPart, TopLogprobs


class CalledFunction(RequestObject):
    """Name and arguments of a tool call that an assistant's message holds."""

    name: str
    arguments: str = "{}"

    @field_validator("arguments")
    @classmethod
    def _is_object(cls, value: str) -> str:
        if not isinstance(orjson.loads(value or "{}"), dict):
            raise ValueError("the arguments of a call are a JSON object")
        return value or "{}"

    def to_template(self) -> dict[str, Any]:
        """Templates write the arguments themselves."""
        return {"name": self.name, "arguments": orjson.loads(self.arguments)}


class ToolCall(RequestObject):
    """A tool call that an assistant's message holds."""

    function: CalledFunction
    type: Literal["function"] = "function"


class Message(RequestObject):
    """One message; content that is not text is refused."""

    role: Annotated[str, Field(min_length=1)]
    content: str | list[TextPart] = ""
    tool_calls: list[ToolCall] = Field(default_factory=list)


class Function(RequestObject):
    """`strict` makes no difference: arguments follow the schema where a call is asked for, and nowhere else."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,64}$")]
    description: str = ""
    schema_: dict[str, Any] = Field({"type": "object", "properties": {}}, alias="parameters")
    strict: bool = False

    @field_validator("schema_")
    @classmethod
    def _describes_object(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value.get("type", "object") != "object":
            raise ValueError("the arguments of a call are a JSON object")
        return value


class ToolSpec(RequestObject):
    """One of OpenAI's `tools`."""

    type: Literal["function"]
    function: Function

    def to_template(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        function = self.function
        fields = {"name": function.name, "description": function.description, "parameters": function.schema_}
        return {"type": "function", "function": fields}


class NamedFunction(RequestObject):
    """The function that `tool_choice` names."""

    name: str


class NamedChoice(RequestObject):
    """`tool_choice` that names a tool."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(OpenAIBody):
    """/v1/chat/completions"""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs = 0
    tools: list[ToolSpec] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | NamedChoice = "auto"
    parallel_tool_calls: bool = True
