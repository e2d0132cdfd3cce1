"""The agent: a loop of answers and tool calls, each answer drafted as its phase suggests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack, cast, overload

import orjson
from pydantic import BaseModel, ValidationError

from outrider.errors import TurnLimitReached
from outrider.sdk.client import AsyncClient
from outrider.sdk.phase import TASK_OF, Phase, Situation, guess_phase, prediction_for
from outrider.sdk.request import CallFields, ChatFields, said
from outrider.sdk.results import ChatResult
from outrider.sdk.session import Session
from outrider.sdk.tool import Tool, ToolAnswer, ToolFunction, call_all
from outrider.sdk.wire import ToolCall

OutputT = TypeVar("OutputT")
M = TypeVar("M", bound=BaseModel)

_OWN = frozenset({"messages", "tools", "tool_choice", "response_format"})
_AS_JSON = "Give your answer as JSON that follows the schema."


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


class Agent(Generic[OutputT]):
    """Answers tasks with the help of tools.

    Each turn is one request. Tools that the model calls together run together, each within its own timeout; unknown
    tools, bad arguments, timeouts (seconds, see Tool) and exceptions are told to the model, which goes on. A text
    without calls is the answer. With `output`, a pydantic model, the answer is one of these: a text that is none is
    asked for again under the model's JSON schema.

    Every turn gets the task hint of its phase (`phase_of`), unless `task`, `hints` or `off` are among the fields, and
    where it edits or quotes what a tool gave, that as its prediction.

    `run` raises what `AsyncClient.chat` raises and TurnLimitReached; the constructor TypeError for what cannot be a
    tool and for a field that is the agent's own, ValueError for two tools of one name and for a `starts_with`
    that is none of them.

    Example::

        async def multiply(a: int, b: int) -> int:
            "Multiply two whole numbers."
            return a * b

        agent = Agent(client, [multiply], instructions="Use the tools.", temperature=0)
        result = await agent.run("What is 17 * 23?")
        print(result.output)
    """

    @overload
    def __init__(
        self: Agent[str],
        client: AsyncClient,
        tools: Sequence[Tool | ToolFunction] = (),
        *,
        instructions: str | None = None,
        output: None = None,
        starts_with: str = "auto",
        max_turns: int = 10,
        phase_of: Callable[[Situation], Phase] = guess_phase,
        **fields: Unpack[CallFields],
    ) -> None: ...

    @overload
    def __init__(
        self: Agent[M],
        client: AsyncClient,
        tools: Sequence[Tool | ToolFunction] = (),
        *,
        instructions: str | None = None,
        output: type[M],
        starts_with: str = "auto",
        max_turns: int = 10,
        phase_of: Callable[[Situation], Phase] = guess_phase,
        **fields: Unpack[CallFields],
    ) -> None: ...

    def __init__(
        self,
        client: AsyncClient,
        tools: Sequence[Tool | ToolFunction] = (),
        *,
        instructions: str | None = None,
        output: Any = None,
        starts_with: str = "auto",
        max_turns: int = 10,
        phase_of: Callable[[Situation], Phase] = guess_phase,
        **fields: Unpack[CallFields],
    ) -> None:
        """`starts_with` is the `tool_choice` of a run's first turn: `required` or a tool's name make it a call.

        `max_turns` counts requests to the model per run; `fields` go into each of them.
        """
        self._client = client
        self._tools = {tool.name: tool for tool in map(Tool.of, tools)}
        if len(self._tools) < len(tools):
            raise ValueError("two tools have the same name")
        if max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {max_turns!r}")
        if starts_with not in ("auto", "none", *(["required", *self._tools] if self._tools else [])):
            raise ValueError(f"starts_with: there is no tool {starts_with!r}")
        if own := sorted(_OWN & fields.keys()):
            raise TypeError(f"{own[0]} is the agent's own to set")
        self._instructions = instructions
        self._output: type[BaseModel] | None = output
        self._starts_with = starts_with
        self._max_turns = max_turns
        self._phase_of = phase_of
        self._fields = fields

    async def run(self, task: str, *, session: Session | None = None) -> AgentResult[OutputT]:
        """Work until there is an answer. Cancelled, it leaves neither tools nor connections behind.

        Raises what the class says. The session holds every turn that was completed, also after an error.

        Example::

            session = Session()
            result = await agent.run("Read notes.txt and say what it is about.", session=session)
        """
        session = session or Session()
        with session.in_use():
            told = [{"role": "user", "content": task}]
            if self._instructions is not None and not session.messages:
                told = [{"role": "system", "content": self._instructions}, *told]
            return await self._loop(session, told)

    async def _loop(self, session: Session, told: list[dict[str, Any]]) -> AgentResult[OutputT]:
        turns: list[Turn] = []
        is_structured = self._output is not None and not self._tools
        while len(turns) < self._max_turns:
            turn = await self._turn(session.messages + told, turns, is_structured)
            turns.append(turn)
            answer = _assistant(turn)
            session.add([*told, answer, *(one.to_message() for one in turn.answers)])
            told = []
            if turn.answers:
                continue
            output, problem = self._read(turn.result.text)
            if problem is None:
                return AgentResult(output, tuple(turns), session)
            told = said(f"{problem} {_AS_JSON}" if is_structured else _AS_JSON)
            is_structured = True
        raise TurnLimitReached(f"no answer within {self._max_turns} turns")

    async def _turn(self, messages: list[dict[str, Any]], turns: list[Turn], is_structured: bool) -> Turn:
        has_tools = bool(self._tools) and not is_structured
        answers = turns[-1].answers if turns else ()
        situation = Situation(messages, answers, has_tools, is_structured)
        phase = self._phase_of(situation)
        fields = cast(ChatFields, dict(self._fields))
        if self._fields.keys().isdisjoint({"task", "hints", "off"}):
            fields["task"] = TASK_OF[phase]
        if "prediction" not in self._fields and (prediction := prediction_for(phase, situation)) is not None:
            fields["prediction"] = prediction
        if self._tools:
            # They stay in the request when none may be called, since they stand at its beginning.
            choice = "none" if is_structured else "auto" if turns else self._starts_with
            fields |= {"tools": list(self._tools.values()), "tool_choice": choice}
        if is_structured:
            fields["response_format"] = self._output
        result = await self._client.chat(messages, **fields)
        called = [] if is_structured else result.tool_calls  # where none may be called, none is
        calls = [_named(call, index, len(turns)) for index, call in enumerate(called)]
        return Turn(phase, result, tuple(await call_all(self._tools, calls)) if calls else ())

    def _read(self, text: str) -> tuple[Any, str | None]:
        """The answer, or what is wrong with it."""
        if self._output is None:
            return text, None
        try:
            return self._output.model_validate_json(text.strip()), None
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"]))
            return None, f"{where}: {first['msg']}." if where else f"{first['msg']}."


def _named(call: ToolCall, index: int, turn: int) -> ToolCall:
    """Some servers give calls no ids, by which answers are told apart."""
    return call if call.id else call.model_copy(update={"id": f"call_{turn}_{index}"})


def _assistant(turn: Turn) -> dict[str, Any]:
    """The model's message as it goes into the conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.result.text}
    if turn.answers:
        message["tool_calls"] = [_said(answer.call) for answer in turn.answers]
    return message


def _said(call: ToolCall) -> dict[str, Any]:
    """Servers read arguments as JSON and refuse others; what was wrong with them stands in the tool's answer."""
    function = call.function
    try:
        is_object = isinstance(orjson.loads(function.arguments), dict)
    except orjson.JSONDecodeError:
        is_object = False
    arguments = function.arguments if is_object else "{}"
    return {"id": call.id, "type": "function", "function": {"name": function.name, "arguments": arguments}}
