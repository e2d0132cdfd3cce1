"""Streamed runs of an agent: what they tell, and how they end."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from sdk_wire import DONE, USAGE, delta, said, stream_of

from outrider import Agent, Session, Tool, ToolAnswer, TurnLimitReached
from outrider.runtimes.scripted_replies import Fault, Reply
from sdk.test_sdk_agent import CITY, City, add, bodies


def streamed_call(*calls: tuple[str, str]) -> Reply:
    """An answer that calls tools, piece by piece, with running counts."""
    pieces = [
        delta(usage={**USAGE, "completion_tokens": i + 1},
              tool_calls=[{"index": i, "id": f"c{i}", "function": {"name": name, "arguments": arguments}}])
        for i, (name, arguments) in enumerate(calls)
    ]  # fmt: skip
    return stream_of(*pieces, delta("tool_calls"), DONE)


def streamed_text(*pieces: str) -> Reply:
    return stream_of(*(delta(content=piece) for piece in pieces), delta("stop", USAGE), DONE)


def kinds(events: list[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


async def test_a_streamed_run_tells_what_happens(connect: Any) -> None:
    """Pieces, calls, what tools gave, the end of each turn and the result; what is sent is that of a whole run."""
    replies = streamed_call(("add", '{"a": 17, "b": 4}')), streamed_text("It is", " 21.")
    async with connect(*replies) as (lane, client):
        agent = Agent(client, [add])
        async with agent.stream("What is 17 + 4?", counts_tokens=True) as stream:
            events: list[Any] = [event async for event in stream]
        first, second = bodies(lane)
    assert kinds(events) == [
        "OtherDelta", "ToolCall", "ToolAnswer", "Turn", "TextDelta", "TextDelta", "Turn", "AgentResult",
    ]  # fmt: skip
    piece, call, told, turn, *texts, last, result = events
    assert piece.num_tokens == 1 and call.function.name == "add"
    assert (told.content, turn.answers, turn.phase) == ("21", (told,), "json")
    assert [text.text for text in texts] == ["It is", " 21."] and last.result.text == "It is 21."
    assert result.output == "It is 21." and result.turns == (turn, last)
    assert first["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (first["outrider"], second["outrider"]) == ({"task": "extract"}, {"task": "chat"})
    assert second["messages"] == result.session.messages[:-1]


async def test_a_streamed_run_takes_every_branch_of_a_whole_one(connect: Any) -> None:
    """Bad JSON, an unknown tool, one that hangs, calls together, the quickest answer first; then a schema."""

    async def hang() -> None:
        await asyncio.Event().wait()

    calls = streamed_call(("hang", "{}"), ("add", '{"a": 1,'), ("minus", "{}"), ("add", '{"a": 1, "b": 1}'))
    async with connect(calls, streamed_text("Oslo"), streamed_text("{"), streamed_text(CITY)) as (lane, client):
        agent = Agent(client, [add, Tool(hang, timeout_s=0.05)], output=City)
        async with agent.stream("go") as stream:
            events: list[Any] = [event async for event in stream]
        sent = bodies(lane)
    told = [event for event in events if isinstance(event, ToolAnswer)]
    assert [answer.call.id for answer in told] == ["c1", "c2", "c3", "c0"]
    assert [type(answer.error) for answer in told] == [ValueError, LookupError, type(None), TimeoutError]
    assert [message["tool_call_id"] for message in sent[1]["messages"][-4:]] == ["c0", "c1", "c2", "c3"]
    assert events[-1].output == City(name="Oslo", people=700000)
    assert [body["tool_choice"] for body in sent] == ["auto", "auto", "none", "none"]


async def test_a_streamed_run_has_the_same_limit(connect: Any) -> None:
    """After the turns that it was allowed, each of which is told and kept."""
    async with connect(streamed_call(("add", '{"a": 1, "b": 1}'))) as (lane, client):
        session, events = Session(), []
        with pytest.raises(TurnLimitReached, match="within 2 turns"):
            async with Agent(client, [add], max_turns=2).stream("go", session=session) as stream:
                async for event in stream:
                    events.append(event)
        assert kinds(events).count("Turn") == 2 == len(lane.requests)
        assert [message["role"] for message in session.messages] == ["user", *["assistant", "tool"] * 2]


@pytest.mark.parametrize("way", ["break", "exception", "cancel", "forgotten"])
async def test_leaving_a_streamed_run_while_the_model_writes(connect: Any, until: Any, way: str) -> None:
    """The connection is free, whatever the way out, and the session too, without the half turn."""
    session, has_begun = Session(), asyncio.Event()

    async def read(client: Any) -> None:
        async with Agent(client, [add]).stream("go", session=session) as stream:
            async for _ in stream:
                has_begun.set()
                if way == "break":
                    break
                if way == "exception":
                    raise KeyError

    async with connect(stream_of(delta(content="a"), Fault.HANG), said("Hello.")) as (lane, client):
        if way == "forgotten":
            events = await Agent(client, [add]).stream("go", session=session).__aenter__()
            assert (await anext(events)).text == "a"
            del events
            gc.collect()
        else:
            task = asyncio.create_task(read(client))
            async with asyncio.timeout(60):
                if way == "cancel":
                    await has_begun.wait()
                    task.cancel()
                (end,) = await asyncio.gather(task, return_exceptions=True)
            expected = {"break": type(None), "exception": KeyError, "cancel": asyncio.CancelledError}
            assert type(end) is expected[way]
        await until(lambda: len(lane.disconnects) == 1 and lane.num_open == 0)
        assert session.messages == []
        assert (await Agent(client).run("hi", session=session)).output == "Hello."


async def test_leaving_a_streamed_run_while_tools_run(connect: Any) -> None:
    """By break at the first answer: the tools that still run end too."""
    ended = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with connect(streamed_call(("hang", "{}"), ("add", '{"a": 1, "b": 1}'))) as (lane, client):
        session = Session()
        async with Agent(client, [hang, add]).stream("go", session=session) as stream:
            async for event in stream:
                if isinstance(event, ToolAnswer):
                    break
        assert ended and session.messages == [] and lane.num_open == 0
