"""What an agent asks the server: hints, phases, predictions, the text before; and what it refuses to be told."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from sdk_wire import called, said

from outrider import Agent, Session, Tool
from outrider.dispatch.affinity import Affinity, prefix_keys
from sdk.test_sdk_agent import CITY, City, add, bodies


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
