"""Async Python functions as tools: their schema from type hints, and one call with every way in which it can fail."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_json

from outrider.sdk.phase import Phase
from outrider.sdk.wire import ToolCall

ToolFunction = Callable[..., Awaitable[Any]]

#: How long a function that is cancelled may take to end.
_UNWIND_S = 1.0
#: Calls that were cancelled and have not ended: a loop alone would let them be collected in the midst of it.
_cancelled: set[asyncio.Future[Any]] = set()


class _Untitled(GenerateJsonSchema):
    """Titles repeat the names, and every token of a tool's schema is read anew in every session."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Tool:
    """An async function that the model may call; name, description and schema are the function's own.

    Parameters need type hints that pydantic knows; `Annotated[int, Field(description="...")]` describes one.
    Arguments are checked before the call. What the function returns goes to the model, text as it is and anything
    else as JSON; what it raises goes there too, so that the model may try otherwise. TypeError for a function that
    cannot be a tool.

    Example::

        async def add(a: int, b: int) -> int:
            "Add two whole numbers."
            return a + b

        agent = Agent(client, [Tool(add, timeout_s=2)])
    """

    def __init__(
        self,
        function: ToolFunction,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float = 30.0,
        leads_to: Phase | None = None,
    ) -> None:
        """`timeout_s` bounds one call, in seconds. `leads_to` says what the model will do with what the tool gives:
        `edit` or `quote` it, so that it is offered as a prediction of the next answer."""
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"a tool must be an async function, not {function!r}")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")
        self.name = name or function.__name__
        self.description = inspect.cleandoc(description or function.__doc__ or "")
        self.timeout_s = timeout_s
        self.leads_to = leads_to
        self._function = function
        self._arguments = _arguments_of(function)

    @classmethod
    def of(cls, tool: Tool | ToolFunction) -> Tool:
        """A function as a tool with the defaults; a tool as it is. TypeError as of the class."""
        return tool if isinstance(tool, Tool) else cls(tool)

    def to_wire(self) -> dict[str, Any]:
        """As it stands in `tools` of a request. Raises nothing."""
        schema = self._arguments.model_json_schema(schema_generator=_Untitled)
        schema.pop("title", None)
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}

    async def call(self, arguments: str) -> str:
        """What the function gives for arguments in JSON, as text.

        ValueError for arguments that are no JSON or do not fit, TimeoutError after `timeout_s` and at most a second
        in which the function may clean up, and what it raises.
        """
        try:
            checked = self._arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            raise ValueError(_told(error)) from error
        given = {name: getattr(checked, name) for name in self._arguments.model_fields}
        task = asyncio.ensure_future(self._function(**given))
        try:
            await asyncio.wait([task], timeout=self.timeout_s)
            is_late = not task.done()
        finally:
            # A function that does not heed its cancellation is left behind: nobody waits for it.
            if task.cancel():
                _cancelled.add(task)
                task.add_done_callback(_forget)
                await asyncio.wait([task], timeout=_UNWIND_S)
        if is_late:
            raise TimeoutError(f"no result within {self.timeout_s:g} s")
        value = task.result()
        return value if isinstance(value, str) else to_json(value, fallback=str).decode()


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """One call of a tool and what the model is told of it.

    Example::

        failed = [answer.call.function.name for turn in result.turns for answer in turn.answers if answer.error]
    """

    call: ToolCall
    content: str
    """What the tool gave, or the error as the model reads it."""
    error: Exception | None
    seconds: float
    leads_to: Phase | None = None

    def to_message(self) -> dict[str, Any]:
        """As it stands in the conversation. Raises nothing."""
        return {"role": "tool", "tool_call_id": self.call.id, "content": self.content}


async def answers_of(
    tools: Mapping[str, Tool], calls: Sequence[ToolCall]
) -> AsyncGenerator[tuple[int, ToolAnswer], None]:
    """All calls at once; each answer, with the number of its call, as soon as it is there.

    Cancelled or closed, it ends when all tools have, or a second after they were cancelled.
    """
    began_s = time.monotonic()
    ends_s: dict[int, float] = {}

    async def run(index: int, call: ToolCall) -> str:
        try:
            return await _called(tools, call)
        finally:
            ends_s[index] = time.monotonic()

    numbers = {asyncio.create_task(run(index, call)): index for index, call in enumerate(calls)}
    waiting = set(numbers)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=numbers.__getitem__):
                index = numbers[task]
                yield index, _answer(tools, calls[index], task, ends_s.get(index, began_s) - began_s)
    finally:
        for task in numbers:
            task.cancel()
        if numbers:
            await asyncio.wait(numbers)


def _forget(task: asyncio.Future[Any]) -> None:
    _cancelled.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, or asyncio would say in the log that nobody did


async def _called(tools: Mapping[str, Tool], call: ToolCall) -> str:
    tool = tools.get(call.function.name)
    if tool is None:
        known = ", ".join(tools) or "none"
        raise LookupError(f"there is no tool {call.function.name!r}; there are: {known}")
    return await tool.call(call.function.arguments)


def _answer(tools: Mapping[str, Tool], call: ToolCall, task: asyncio.Task[str], seconds: float) -> ToolAnswer:
    error = asyncio.CancelledError("the tool cancelled itself") if task.cancelled() else task.exception()
    if error is None:
        tool = tools[call.function.name]
        return ToolAnswer(call, task.result(), None, seconds, tool.leads_to)
    if isinstance(error, asyncio.CancelledError):
        error = RuntimeError(str(error))
    if not isinstance(error, Exception):
        raise error
    told = {"error": f"{type(error).__name__}: {error}"}
    return ToolAnswer(call, to_json(told).decode(), error, seconds)


def _arguments_of(function: ToolFunction) -> type[BaseModel]:
    """The function's parameters as a model that its arguments are checked by."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{function.__name__}: a tool's parameters have names, which {parameter} has not")
        if name not in hints:
            raise TypeError(f"{function.__name__}: the parameter {name!r} needs a type hint")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints[name], default)
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def _told(error: ValidationError) -> str:
    problems = []
    for problem in error.errors(include_url=False, include_context=False):
        where = ".".join(map(str, problem["loc"])) or "arguments"
        problems.append(f"{where}: {problem['msg']}")
    return "; ".join(problems)
