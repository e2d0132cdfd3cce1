"""Functions as tools: the schema that the model sees, the check of its arguments, and every end of a call."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from contextlib import suppress
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from outrider import FunctionCall, Tool, ToolAnswer, ToolCall
from outrider.sdk.tool import answers_of


class Place(BaseModel):
    city: str
    country: str = "France"


async def weather(
    place: Place,
    days: Annotated[int, Field(ge=1, le=7, description="Days ahead.")] = 1,
    unit: Literal["C", "F"] = "C",
) -> Any:
    """Forecast the weather.

    In whole degrees.
    """
    return {"city": place.city, "days": days, "unit": unit}


async def add(a: int, b: int) -> int:
    return a + b


async def all_of(tools: dict[str, Tool], *calls: ToolCall) -> list[ToolAnswer]:
    """The answers in the order of the calls."""
    answers = {index: answer async for index, answer in answers_of(tools, calls)}
    return [answers[index] for index in range(len(calls))]


def call(name: str, arguments: Any, id: str = "c1") -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(id=id, function=FunctionCall(name=name, arguments=text))


def test_the_schema_comes_from_type_hints() -> None:
    """Name, docstring, types, bounds, defaults and descriptions; no titles, which only repeat names."""
    wire = Tool(weather).to_wire()
    assert wire["type"] == "function"
    function = wire["function"]
    assert (function["name"], function["description"]) == ("weather", "Forecast the weather.\n\nIn whole degrees.")
    schema = function["parameters"]
    assert schema["required"] == ["place"] and schema["additionalProperties"] is False
    days = {"default": 1, "description": "Days ahead.", "maximum": 7, "minimum": 1, "type": "integer"}
    assert schema["properties"]["days"] == days
    assert schema["properties"]["unit"] == {"default": "C", "enum": ["C", "F"], "type": "string"}
    assert "title" not in schema and "title" not in schema["properties"]["place"]
    named = Tool(add, name="plus", description="Adds.").to_wire()["function"]
    assert (named["name"], named["description"]) == ("plus", "Adds.")


def plain(a: int) -> int:
    return a


async def untyped(a) -> int:  # type: ignore[no-untyped-def]
    return a


async def variadic(*numbers: int) -> int:
    return sum(numbers)


async def nameless(a: int, /) -> int:
    return a


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (plain, "async function"),
        (untyped, "'a' needs a type hint"),
        (variadic, "have names"),
        (nameless, "have names"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(function: Any, message: str) -> None:
    """When it is made, not when the model first calls it."""
    with pytest.raises(TypeError, match=message):
        Tool(function)


def test_a_timeout_is_positive() -> None:
    """A tool that could never answer is not made."""
    with pytest.raises(ValueError, match="timeout_s must be"):
        Tool(add, timeout_s=0)


async def test_arguments_arrive_as_their_types() -> None:
    """Nested models and defaults; results that are no text become JSON, text stays."""
    assert json.loads(await Tool(weather).call('{"place": {"city": "Oslo"}, "days": 3}')) == {
        "city": "Oslo", "days": 3, "unit": "C",
    }  # fmt: skip

    async def echo(text: str = "nothing") -> str:
        return text

    async def where() -> Place:
        return Place(city="Oslo")

    assert await Tool(echo).call('{"text": "\\"x\\""}') == '"x"'
    assert await Tool(echo).call("") == "nothing"
    assert json.loads(await Tool(where).call("{}")) == {"city": "Oslo", "country": "France"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{", "JSON"),
        ("[1]", "arguments: "),
        ('{"a": 1}', "b: Field required"),
        ('{"a": "x", "b": 2}', "a: .*integer"),
        ('{"a": 1, "b": 2, "c": 3}', "c: Extra"),
    ],
)
async def test_bad_arguments_are_named(arguments: str, message: str) -> None:
    """Before the function is called."""
    with pytest.raises(ValueError, match=message):
        await Tool(add).call(arguments)


async def test_every_end_of_a_call_is_told() -> None:
    """Result, unknown tool, bad arguments, exception, timeout, cancellation by itself: each in its place."""

    async def fail() -> None:
        raise KeyError("no such city")

    async def hang() -> None:
        await asyncio.Event().wait()

    async def give_up() -> None:
        raise asyncio.CancelledError

    async def own_timeout() -> None:
        raise TimeoutError("the database is slow")

    tools = {t.name: t for t in map(Tool.of, (add, fail, Tool(hang, timeout_s=0.05), give_up, own_timeout))}
    calls = [
        call("add", {"a": 1, "b": 2}, "1"), call("minus", {}, "2"), call("add", "{", "3"), call("fail", {}, "4"),
        call("hang", {}, "5"), call("give_up", {}, "6"), call("own_timeout", {}, "7"),
    ]  # fmt: skip
    answers = await all_of(tools, *calls)
    assert [a.call.id for a in answers] == ["1", "2", "3", "4", "5", "6", "7"]
    assert answers[0].to_message() == {"role": "tool", "tool_call_id": "1", "content": "3"}
    told = [json.loads(a.content)["error"] for a in answers[1:]]
    assert told[0] == "LookupError: there is no tool 'minus'; there are: add, fail, hang, give_up, own_timeout"
    assert "JSON" in told[1] and told[2] == "KeyError: 'no such city'"
    assert told[3] == "TimeoutError: no result within 0.05 s" and "cancelled itself" in told[4]
    assert told[5] == "TimeoutError: the database is slow"
    assert [type(a.error) for a in answers[:3]] == [type(None), LookupError, ValueError]


async def test_calls_run_together() -> None:
    """Each waits for the other, so that one after the other they would never end."""
    barrier = asyncio.Barrier(2)

    async def meet() -> str:
        await barrier.wait()
        return "met"

    answers = await all_of({"meet": Tool(meet, timeout_s=5)}, call("meet", {}), call("meet", {}))
    assert [a.content for a in answers] == ["met", "met"]


async def test_cancelled_calls_end_before_it_does() -> None:
    """No tool goes on behind the caller's back, and each may clean up."""
    ended = []

    async def hang(n: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(n)

    task = asyncio.create_task(all_of({"hang": Tool(hang)}, call("hang", {"n": 1}), call("hang", {"n": 2})))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [1, 2]


async def test_each_answer_is_told_when_it_is_there() -> None:
    """The quick tool's before the slow one has ended; closed then, the slow one ends too."""
    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    calls = [call("hang", {}), call("add", {"a": 1, "b": 2})]
    answers = answers_of({"hang": Tool(hang), "add": Tool(add)}, calls)
    index, first = await anext(answers)
    assert (index, first.content) == (1, "3") and not ended.is_set()
    await answers.aclose()
    assert ended.is_set()


async def test_without_calls_there_are_no_answers() -> None:
    """And nothing is waited for."""
    assert await all_of({}) == []


async def test_a_tool_that_heeds_no_cancellation_is_left_behind() -> None:
    """It is told as late, and holds up neither the others nor a cancellation of all."""
    released = asyncio.Event()

    async def stubborn() -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    try:
        began_s = time.monotonic()
        late, good = await all_of(
            {"stubborn": Tool(stubborn, timeout_s=0.05), "add": Tool(add)},
            call("stubborn", {}),
            call("add", {"a": 1, "b": 2}),
        )
        assert "no result within 0.05 s" in late.content and good.content == "3"
        task = asyncio.create_task(all_of({"stubborn": Tool(stubborn)}, call("stubborn", {})))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - began_s < 10
    finally:
        released.set()


async def test_what_was_left_behind_ends_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """It is held until it ends, though only it knows what it waits for, and its error is nobody's any more."""
    released, ended = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await released.wait()
            ended.set()
            raise KeyError("too late") from None

    async def wait_alone() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    tools = {"fail": Tool(fail, timeout_s=0.05), "wait_alone": Tool(wait_alone, timeout_s=0.05)}
    answers = await all_of(tools, call("fail", {}), call("wait_alone", {}))
    assert all("no result within" in answer.content for answer in answers)
    del answers
    released.set()
    await ended.wait()
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.messages == []
