"""The agent's loop against a scripted lane: every branch, and what is left behind when it ends early."""

from __future__ import annotations

import asyncio
import gc
import json
from itertools import pairwise
from typing import Any

import pytest
from pydantic import BaseModel
from sdk_wire import DONE, USAGE, called, delta, said, stream_of

from outrider import Agent, Session, Tool, ToolAnswer, TurnLimitReached, errors
from outrider.dispatch.affinity import Affinity, prefix_keys
from outrider.runtimes.scripted import Fault, Reply, error_reply


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


async def test_what_a_tool_gave_is_offered_as_prediction(connect: Any) -> None:
    """Where the tool leads to an edit: task and prediction of the next turn, and of no other."""

    async def read_file(path: str) -> str:
        return f"text of {path}"

    async with connect(called(("read_file", '{"path": "a"}')), said("edited"), said("x")) as (lane, client):
        agent, session = Agent(client, [Tool(read_file, leads_to="edit")]), Session()
        await agent.run("Fix a.", session=session)
        await agent.run("Thanks.", session=session)
        first, second, third = bodies(lane)
    assert "prediction" not in first and "prediction" not in third
    assert second["prediction"] == {"type": "content", "content": "text of a"}
    assert [body["outrider"]["task"] for body in (first, second, third)] == ["extract", "edit", "extract"]


async def test_own_hints_and_phases_win(connect: Any) -> None:
    """A task, hints, `off` or a prediction of the caller's are left alone; `phase_of` replaces the guess."""
    async with connect(said("x")) as (lane, client):
        await Agent(client, [add], task="maths", prediction="p").run("go")
        await Agent(client, [add], off=True).run("go")
        await Agent(client, [add], phase_of=lambda situation: "quote").run("go")
        own, off, quoted = bodies(lane)
    assert (own["outrider"], own["prediction"]["content"]) == ({"task": "maths"}, "p")
    assert off["outrider"] == {"off": True} and quoted["outrider"] == {"task": "quote"}


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


async def test_where_no_tool_may_be_called_none_is(connect: Any) -> None:
    """A server that calls one all the same is asked for the answer again."""
    num_calls = 0

    async def count() -> None:
        nonlocal num_calls
        num_calls += 1

    replies = said("It is Oslo."), called(("count", "{}")), said(CITY)
    async with connect(*replies) as (_, client):
        result = await Agent(client, [count], output=City).run("Which city?")
    assert result.output == City(name="Oslo", people=700000) and num_calls == 0


@pytest.mark.parametrize(
    ("options", "kind", "name"),
    [
        ({"starts_with": "minus"}, ValueError, "minus"),
        ({"tools": [], "starts_with": "required"}, ValueError, "required"),
    ],
)
async def test_what_is_not_an_agent_s_to_be_told_is_refused(connect: Any, options: Any, kind: Any, name: str) -> None:
    """When it is made, and not in its first turn."""
    async with connect(said("x")) as (_, client):
        with pytest.raises(kind, match=name):
            Agent(client, **{"tools": [add], **options})
        Agent(client, [add], starts_with="add")


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"temprature": 0}, TypeError, "temprature"),
        ({"tool_choice": "none"}, TypeError, "tool_choice is the agent's own"),
        ({"response_format": City}, TypeError, "response_format is the agent's own"),
        ({"k": 99}, ValueError, "k: "),
        ({"priority": "soon"}, ValueError, "priority"),
        ({"extra_body": {"tools": []}}, ValueError, "extra_body: 'tools'"),
    ],
    ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else None,
)
async def test_wrong_fields_are_named_when_the_agent_is_made(
    connect: Any, fields: Any, kind: type[Exception], message: str
) -> None:
    """Not in the middle of a run, and nothing that the agent says itself is overwritten."""
    async with connect() as (_, client):
        with pytest.raises(kind, match=message):
            Agent(client, [add], **fields)


async def test_fields_that_say_nothing_do_not_hide_the_phase(connect: Any) -> None:
    """`off=False` and `task=None` are the defaults, so that the turn has its phase's task."""
    async with connect(said("x")) as (lane, client):
        await Agent(client, [add], off=False, task=None).run("go")
        assert bodies(lane)[0]["outrider"] == {"task": "extract"}


@pytest.mark.parametrize("leads_to", ["edit", "quote"])
async def test_what_was_read_before_is_offered_again(connect: Any, leads_to: Any) -> None:
    """In a later run of the session, where `phase_of` says that the answer repeats it: the last one."""

    async def read_file(path: str) -> str:
        return f"text of {path}"

    replies = called(("read_file", '{"path": "a"}')), called(("read_file", '{"path": "b"}')), said("ok"), said("done")
    async with connect(*replies) as (lane, client):
        session, tool = Session(), Tool(read_file, leads_to=leads_to)
        await Agent(client, [tool]).run("Read a and b.", session=session)
        await Agent(client, phase_of=lambda situation: leads_to).run("Now repeat it.", session=session)
        sent = bodies(lane)
    assert [body.get("prediction", {}).get("content") for body in sent] == [
        None,
        "text of a",
        "text of b",
        "text of b",
    ]
    assert [body["outrider"]["task"] for body in sent] == ["extract", leads_to, leads_to, leads_to]


async def test_every_request_begins_with_the_one_before(connect: Any) -> None:
    """Over turns, runs and the request for a structured answer, tools too: so the gateway finds its lane again."""
    replies = [called(("add", '{"a": 1, "b": 1}')), said("It is Oslo."), said(CITY), called(("add", "{")), said(CITY)]
    async with connect(*replies) as (lane, client):
        agent, session = Agent(client, [add], output=City, instructions="Be brief."), Session()
        await agent.run("Which city?", session=session)
        await agent.run("And now?", session=session)
        sent = bodies(lane)
    assert len(sent) == 5
    for before, after in pairwise(sent):
        assert after["messages"][: len(before["messages"])] == before["messages"]
        assert after["tools"] == before["tools"]
        affinity = Affinity()
        affinity.served(prefix_keys(before, None), "the lane of the one before")
        assert affinity.home(prefix_keys(after, None)[:-1]) is not None


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
    session = Session()

    async def read(client: Any) -> None:
        async with Agent(client, [add]).stream("go", session=session) as stream:
            async for _ in stream:
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
            await until(lambda: lane.num_open == 1 or lane.disconnects)
            await asyncio.sleep(0.05)
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
