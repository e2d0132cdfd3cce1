"""The agent's loop against a scripted lane: its branches, and what is left behind when it ends early."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel
from sdk_wire import called, said

from outrider import Agent, Session, Tool, TurnLimitReached, errors
from outrider.runtimes.scripted_replies import Fault, Reply, error_reply


async def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


class City(BaseModel):
    name: str
    people: int


CITY = '{"name": "Oslo", "people": 700000}'


def bodies(lane: Any) -> list[Any]:
    return [request.json() for request in lane.requests]


def outcome(lane: Any, turn: int = -1) -> str:
    """What the model was told of its last call before this request."""
    content: str = bodies(lane)[turn]["messages"][-1]["content"]
    return content


async def test_a_tool_is_called_and_its_answer_goes_back(connect: Any) -> None:
    """Two requests: one with the tools, one that begins with all of the first and goes on with call and answer."""
    async with connect(called(("add", '{"a": 17, "b": 4}')), said("It is 21.")) as (lane, client):
        agent = Agent(client, [add], instructions="Use the tools.", temperature=0)
        result = await agent.run("What is 17 + 4?")
        first, second = bodies(lane)
    assert result.output == "It is 21." and result.last.finish_reason == "stop"
    assert [turn.phase for turn in result.turns] == ["json", "prose"]
    assert result.num_completion_tokens == 4
    assert result.turns[0].answers[0].content == "21" and result.turns[0].answers[0].seconds >= 0
    assert first["messages"] == [
        {"role": "system", "content": "Use the tools."},
        {"role": "user", "content": "What is 17 + 4?"},
    ]
    assert first["tools"] == [Tool(add).to_wire()] == second["tools"]
    assert (first["tool_choice"], first["temperature"], first["outrider"]) == ("auto", 0, {"task": "extract"})
    assert second["messages"][:2] == first["messages"]
    assert second["messages"][2:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c0", "type": "function", "function": {"name": "add", "arguments": '{"a": 17, "b": 4}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "21"},
    ]
    assert second["outrider"] == {"task": "chat"}
    assert result.session.messages == [*second["messages"], {"role": "assistant", "content": "It is 21."}]


async def test_parallel_calls_are_answered_in_their_order(connect: Any) -> None:
    """They run together; the slower one is still told first where it was called first."""
    barrier = asyncio.Barrier(2)

    async def wait(n: int, pause_s: float) -> int:
        await barrier.wait()
        await asyncio.sleep(pause_s)
        return n

    calls = called(("wait", '{"n": 1, "pause_s": 0.05}'), ("wait", '{"n": 2, "pause_s": 0}'))
    async with connect(calls, said("done")) as (lane, client):
        await Agent(client, [wait]).run("go")
        told = bodies(lane)[1]["messages"][-2:]
    assert [(one["tool_call_id"], one["content"]) for one in told] == [("c0", "1"), ("c1", "2")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("add", '{"a": 17,'), "JSON"),
        (("add", '"17 and 4"'), "ValueError: arguments:"),
        (("add", '{"a": 17}'), "ValueError: b: Field required"),
        (("minus", "{}"), "LookupError: there is no tool 'minus'; there are: add, hang, fail"),
        (("hang", "{}"), "TimeoutError: no result within 0.05 s"),
        (("fail", "{}"), "OSError: the disk is gone"),
    ],
    ids=["bad JSON", "no object", "missing", "unknown", "hangs", "fails"],
)
async def test_what_goes_wrong_is_told_to_the_model(connect: Any, call: Any, message: str) -> None:
    """The run goes on; arguments that are no object are not sent back as such, since servers would refuse them."""

    async def hang() -> None:
        await asyncio.Event().wait()

    async def fail() -> None:
        raise OSError("the disk is gone")

    async with connect(called(call), said("Sorry.")) as (lane, client):
        result = await Agent(client, [add, Tool(hang, timeout_s=0.05), fail]).run("go")
        assert message in json.loads(outcome(lane))["error"]
        (sent,) = bodies(lane)[1]["messages"][-2]["tool_calls"]
        assert isinstance(json.loads(sent["function"]["arguments"]), dict)
    assert result.output == "Sorry." and result.turns[0].answers[0].error is not None


async def test_the_limit_of_turns(connect: Any) -> None:
    """A model that never stops calling is stopped; the session can go on from there."""
    async with connect(called(("add", '{"a": 1, "b": 1}'))) as (lane, client):
        session = Session()
        with pytest.raises(TurnLimitReached, match="within 3 turns"):
            await Agent(client, [add], max_turns=3).run("go", session=session)
        assert len(lane.requests) == 3
        assert [message["role"] for message in session.messages] == ["user", *["assistant", "tool"] * 3]
        lane.reply = lambda _: said("Two.")
        assert (await Agent(client, [add]).run("And now?", session=session)).output == "Two."
        assert bodies(lane)[-1]["messages"][:-1] == session.messages[:-2]


async def test_cancelled_while_a_tool_runs(connect: Any, until: Any) -> None:
    """The tool ends too, and the half turn is not in the session, which can be used again."""
    began, ended = [], []

    async def hang() -> None:
        began.append(True)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with connect(called(("hang", "{}")), said("Hello.")) as (_, client):
        agent, session = Agent(client, [hang]), Session()
        task = asyncio.create_task(agent.run("go", session=session))
        await until(lambda: began)
        with pytest.raises(RuntimeError, match="in use"):
            await agent.run("too", session=session)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended and session.messages == []
        assert (await agent.run("hi", session=session)).output == "Hello."


async def test_cancelled_while_the_model_writes(connect: Any, until: Any) -> None:
    """The connection is closed, which tells the server to stop."""
    async with connect(Reply(steps=(Fault.HANG,))) as (lane, client):
        task = asyncio.create_task(Agent(client, [add]).run("go"))
        await until(lambda: lane.num_open == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)


async def test_an_error_of_the_server_ends_the_run(connect: Any) -> None:
    """It is raised as the client raises it; completed turns stay in the session."""
    async with connect(called(("add", '{"a": 1, "b": 1}')), error_reply(400)) as (_, client):
        session = Session()
        with pytest.raises(errors.InvalidRequest):
            await Agent(client, [add]).run("go", session=session)
        assert [message["role"] for message in session.messages] == ["user", "assistant", "tool"]


async def test_a_session_goes_on(connect: Any) -> None:
    """The second run begins with all of the first; the instructions stand there once."""
    async with connect(said("Hello."), said("Bye.")) as (lane, client):
        agent, session = Agent(client, instructions="Be brief."), Session()
        await agent.run("Hi", session=session)
        await agent.run("Leave", session=session)
        first, second = bodies(lane)
    assert second["messages"] == [
        *first["messages"], {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Leave"},
    ]  # fmt: skip
    assert "tools" not in first


async def test_a_text_that_fits_is_the_structured_answer(connect: Any) -> None:
    """Without a further request."""
    async with connect(called(("add", '{"a": 1, "b": 1}')), said(f"\n{CITY}\n")) as (lane, client):
        result = await Agent(client, [add], output=City).run("go")
        assert len(lane.requests) == 2 and "response_format" not in bodies(lane)[1]
    assert result.output == City(name="Oslo", people=700000)


async def test_a_text_that_does_not_fit_is_asked_for_under_the_schema(connect: Any) -> None:
    """The tools stay in the request, where their place is, but none may be called; the phase is JSON."""
    async with connect(said("It is Oslo."), said('{"name": "Oslo"}'), said(CITY)) as (lane, client):
        result = await Agent(client, [add], output=City).run("go")
        first, second, third = bodies(lane)
    assert result.output.people == 700000 and [turn.phase for turn in result.turns] == ["json"] * 3
    assert second["response_format"]["json_schema"]["schema"]["required"] == ["name", "people"]
    assert (second["tool_choice"], second["tools"]) == ("none", first["tools"])
    assert second["messages"][-1]["content"].startswith("Give your answer as JSON")
    assert third["messages"][-1]["content"].startswith("people: Field required.")


async def test_without_tools_the_schema_is_there_at_once(connect: Any) -> None:
    """And a model that never keeps it runs into the limit."""
    async with connect(said("Oslo")) as (lane, client):
        with pytest.raises(TurnLimitReached):
            await Agent(client, output=City, max_turns=2).run("go")
        assert len(lane.requests) == 2 and all("response_format" in body for body in bodies(lane))


async def test_the_first_turn_may_have_to_call(connect: Any) -> None:
    """By any tool or a named one; later turns are free."""
    async with connect(called(("add", '{"a": 1, "b": 1}')), said("2")) as (lane, client):
        await Agent(client, [add], starts_with="add").run("go")
        choices = [body["tool_choice"] for body in bodies(lane)]
    assert choices == [{"type": "function", "function": {"name": "add"}}, "auto"]


async def test_calls_without_ids_get_some(connect: Any) -> None:
    """Answers are told apart by ids, also over turns."""
    call = called(("", "add", '{"a": 1, "b": 1}'), ("", "add", '{"a": 2, "b": 2}'))
    async with connect(call, call, said("done")) as (lane, client):
        await Agent(client, [add]).run("go")
        messages = bodies(lane)[-1]["messages"]
    ids = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert len(set(ids)) == 4
    assert ids == [call["id"] for message in messages for call in message.get("tool_calls", ())]


async def test_a_cut_answer_says_so(connect: Any) -> None:
    """The text is given as it is, with its reason."""
    async with connect(said("It is", "length")) as (_, client):
        result = await Agent(client, [add]).run("go")
    assert (result.output, result.last.finish_reason) == ("It is", "length")


async def test_wrong_agents_are_not_made(connect: Any) -> None:
    """Two tools of one name, no turns, a function that cannot be a tool."""
    async with connect() as (_, client):
        with pytest.raises(ValueError, match="same name"):
            Agent(client, [add, Tool(add)])
        with pytest.raises(ValueError, match="max_turns"):
            Agent(client, max_turns=0)
        with pytest.raises(TypeError, match="async function"):
            Agent(client, [len])  # type: ignore[list-item]
