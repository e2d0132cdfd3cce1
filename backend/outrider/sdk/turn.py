"""One turn of an agent: an answer of the model, what its tools gave, and how both go into the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from outrider.sdk.phase import Phase
from outrider.sdk.results import ChatResult, OtherDelta, TextDelta
from outrider.sdk.session import Session
from outrider.sdk.tool import ToolAnswer
from outrider.sdk.wire import ToolCall

OutputT = TypeVar("OutputT")


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model, and what the tools that it called gave.

    Example::

        for turn in result.turns:
            print(turn.phase, turn.result.report and turn.result.report.effective, len(turn.answers))
    """

    phase: Phase
    result: ChatResult
    answers: tuple[ToolAnswer, ...]

    def to_messages(self) -> list[dict[str, Any]]:
        """As it stands in the conversation. Raises nothing."""
        message: dict[str, Any] = {"role": "assistant", "content": self.result.text}
        if self.answers:
            message["tool_calls"] = [_said(answer.call) for answer in self.answers]
        return [message, *(answer.to_message() for answer in self.answers)]


@dataclass(frozen=True, slots=True)
class AgentResult(Generic[OutputT]):
    """How a run of an agent ended.

    Example::

        result = await agent.run("What is 17 * 23?")
        print(result.output, result.num_completion_tokens)
    """

    output: OutputT
    """The last answer's text, or the object that the agent was asked for."""
    turns: tuple[Turn, ...]
    session: Session

    @property
    def last(self) -> ChatResult:
        """The last answer; its `finish_reason` is `length` where it was cut."""
        return self.turns[-1].result

    @property
    def num_completion_tokens(self) -> int:
        """Tokens that the model wrote in all turns, as far as the server counted them."""
        return sum(turn.result.usage.completion_tokens for turn in self.turns if turn.result.usage)


#: What a streamed run tells: pieces as they are written, each call when it is whole, each tool's answer when it is
#: there, each turn when it ends, and the result at last.
AgentEvent = TextDelta | OtherDelta | ToolCall | ToolAnswer | Turn | AgentResult[OutputT]


def named(calls: Sequence[ToolCall], turn: int) -> list[ToolCall]:
    """Some servers give calls no ids, by which answers are told apart."""
    ids = [call.id or f"call_{turn}_{index}" for index, call in enumerate(calls)]
    return [call.model_copy(update={"id": id}) for call, id in zip(calls, ids, strict=True)]


def _said(call: ToolCall) -> dict[str, Any]:
    """Servers read arguments as JSON and refuse others; what was wrong with them stands in the tool's answer."""
    function = call.function
    try:
        is_object = isinstance(orjson.loads(function.arguments), dict)
    except orjson.JSONDecodeError:
        is_object = False
    arguments = function.arguments if is_object else "{}"
    return {"id": call.id, "type": "function", "function": {"name": function.name, "arguments": arguments}}
