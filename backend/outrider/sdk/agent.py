"""The agent: a loop of answers and tool calls, each answer drafted as its phase suggests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Generic, TypeVar, Unpack, cast, overload

from pydantic import BaseModel, ValidationError

from outrider.errors import TurnLimitReached
from outrider.sdk.client import AsyncClient
from outrider.sdk.phase import TASK_OF, Phase, Situation, guess_phase, prediction_for
from outrider.sdk.request import CHOICES, CallFields, ChatFields, chat_ask, said
from outrider.sdk.results import Finished
from outrider.sdk.session import Session
from outrider.sdk.tool import Tool, ToolFunction, answers_of
from outrider.sdk.turn import AgentEvent, AgentResult, OutputT, Turn, named

M = TypeVar("M", bound=BaseModel)

_OWN = frozenset({"messages", "tools", "tool_choice", "response_format"})
_AS_JSON = "Give your answer as JSON that follows the schema."


class Agent(Generic[OutputT]):
    """Answers tasks with the help of tools.

    Each turn is one request. Tools that the model calls together run together, each within its own timeout; unknown
    tools, bad arguments, timeouts (seconds, see Tool) and exceptions are told to the model, which goes on. A text
    without calls is the answer. With `output`, a pydantic model, the answer is one of these: a text that is none is
    asked for again under the model's JSON schema.

    Every turn gets the task hint of its phase (`phase_of`), unless the fields say `task`, `hints` or `off`, and where
    it edits or quotes what a tool gave, that as its prediction.

    `run` raises what `AsyncClient.chat` raises and TurnLimitReached; the constructor TypeError for what cannot be a
    tool, is no field of a call or is the agent's own to set, ValueError for a wrong value, for two tools of one name
    and for a `starts_with` that is none of them.

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
        if starts_with not in ((*CHOICES, *self._tools) if self._tools else ("auto", "none")):
            raise ValueError(f"starts_with: there is no tool {starts_with!r}")
        if own := sorted(_OWN & fields.keys()):
            raise TypeError(f"{own[0]} is the agent's own to set")
        self._instructions = instructions
        self._output: type[BaseModel] | None = output
        self._starts_with = starts_with
        self._max_turns = max_turns
        self._phase_of = phase_of
        self._fields = fields
        first = Situation([], (), bool(self._tools), output is not None and not self._tools)
        chat_ask("", self._asked(first, "prose", is_first=True), is_stream=False)  # refuses what is wrong

    async def run(self, task: str, *, session: Session | None = None) -> AgentResult[OutputT]:
        """Work until there is an answer. Cancelled, it leaves no connection behind, and ends when its tools have,
        or a second after they were cancelled.

        Raises what the class says. The session holds every turn that was completed, also after an error.

        Example::

            session = Session()
            result = await agent.run("Read notes.txt and say what it is about.", session=session)
        """
        async with aclosing(self._loop(task, session or Session(), None)) as events:
            *_, last = [event async for event in events]
        return cast("AgentResult[OutputT]", last)

    def stream(
        self, task: str, *, session: Session | None = None, counts_tokens: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[AgentEvent[OutputT]]]:
        """The same, event by event, the result last; left early, it ends as a run that is cancelled.

        `counts_tokens` as of `AsyncClient.chat_stream`. Iterating raises what the class says.

        Example::

            async with agent.stream("What is 17 * 23?") as events:
                async for event in events:
                    match event:
                        case TextDelta():
                            print(event.text, end="")
                        case ToolCall() | ToolAnswer() | Turn():
                            print(event)
                        case AgentResult():
                            print(event.output)
        """
        return aclosing(self._loop(task, session or Session(), counts_tokens))

    async def _loop(
        self, task: str, session: Session, counts_tokens: bool | None
    ) -> AsyncGenerator[AgentEvent[OutputT], None]:
        """The run's events; with `counts_tokens` None the answers come whole."""
        with session.in_use():
            told = [{"role": "user", "content": task}]
            if self._instructions is not None and not session.messages:
                told = [{"role": "system", "content": self._instructions}, *told]
            turns: list[Turn] = []
            is_structured = self._output is not None and not self._tools
            while len(turns) < self._max_turns:
                async with aclosing(self._turn(session, told, turns, is_structured, counts_tokens)) as events:
                    async for event in events:
                        yield event
                turn = turns[-1]
                if turn.answers:
                    told = []
                    continue
                output, problem = self._read(turn.result.text)
                if problem is None:
                    yield AgentResult(output, tuple(turns), session)
                    return
                told = said(f"{problem} {_AS_JSON}" if is_structured else _AS_JSON)
                is_structured = True
            raise TurnLimitReached(f"no answer within {self._max_turns} turns")

    async def _turn(
        self,
        session: Session,
        told: list[dict[str, Any]],
        turns: list[Turn],
        is_structured: bool,
        counts_tokens: bool | None,
    ) -> AsyncGenerator[AgentEvent[OutputT], None]:
        """Ends with the turn, which is one of `turns` and in the session before it is told."""
        messages = session.messages + told
        last = turns[-1].answers if turns else ()
        situation = Situation(messages, last, bool(self._tools) and not is_structured, is_structured, session.sources)
        phase = self._phase_of(situation)
        fields = self._asked(situation, phase, is_first=not turns)
        if counts_tokens is None:
            result = await self._client.chat(messages, **fields)
        else:
            async with self._client.chat_stream(messages, counts_tokens=counts_tokens, **fields) as stream:
                async for event in stream:
                    if not isinstance(event, Finished):
                        yield event
                result = await stream.result()
        calls = [] if is_structured else named(result.tool_calls, len(turns))  # where none may be called, none is
        for call in calls:
            yield call
        answers = {}
        async with aclosing(answers_of(self._tools, calls)) as given:
            async for index, one in given:
                answers[index] = one
                yield one
        turn = Turn(phase, result, tuple(answers[index] for index in range(len(calls))))
        turns.append(turn)
        session.take([*told, *turn.to_messages()], turn.answers)
        yield turn

    def _asked(self, situation: Situation, phase: Phase, *, is_first: bool) -> ChatFields:
        """The fields of a turn's request."""
        fields = cast(ChatFields, dict(self._fields))
        if not any(self._fields.get(name) for name in ("task", "hints", "off")):
            fields["task"] = TASK_OF[phase]
        if "prediction" not in self._fields and (prediction := prediction_for(phase, situation)) is not None:
            fields["prediction"] = prediction
        if self._tools:
            # They stay in the request when none may be called, since they stand at its beginning.
            choice = "none" if situation.is_structured else self._starts_with if is_first else "auto"
            fields |= {"tools": list(self._tools.values()), "tool_choice": choice}
        if situation.is_structured:
            fields["response_format"] = self._output
        return fields

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
