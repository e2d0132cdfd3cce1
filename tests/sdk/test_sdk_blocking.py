"""The blocking client: the same answers, streams and errors without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from sdk_wire import DONE, delta, said, stream_of

from outrider import (
    Agent,
    AgentResult,
    Client,
    ConnectionLimits,
    Finished,
    Session,
    StreamState,
    TextDelta,
    Turn,
    errors,
)
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import (
    Fault,
    Recorded,
    Reply,
    chat_reply,
    completion_reply,
    error_reply,
    event,
    json_reply,
)


@pytest.fixture
def lane() -> Iterator[ScriptedLane]:
    """A scripted lane on a thread of its own."""
    ready, served = threading.Event(), ScriptedLane(model="m")
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with served:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait(5)
    yield served
    loop.call_soon_threadsafe(stop.set)
    thread.join(5)
    loop.close()


def client_of(lane: ScriptedLane) -> Client:
    return Client(lane.url + "/v1", max_retries=0)


def replies(reply: Reply) -> Callable[[object], Reply]:
    return lambda _: reply


def test_answers_streams_and_models(lane: ScriptedLane) -> None:
    """One connection is used for all of them."""
    with client_of(lane) as client:
        assert [model.id for model in client.models()] == ["m"]
        assert client.chat("hi").text == "The quick brown fox jumps."
        assert client.completions("hi", max_tokens=3).text == "The quick brown fox jumps."
        lane.reply = replies(chat_reply(stream=True))
        with client.chat_stream("hi") as stream:
            events = list(stream)
        assert events[0] == TextDelta("The") and isinstance(events[-1], Finished)
        assert stream.asynchronous.state is StreamState.ENDED
        lane.overrides["/v1/responses"] = json_reply({"id": "r", "output": []})
        assert client.responses("hi").id == "r"
        assert lane.num_connections == 1


def test_leaving_a_stream_frees_its_connection(lane: ScriptedLane) -> None:
    """By break too; what is left can be read as a whole before."""
    lane.reply = replies(stream_of(delta(content="a"), Fault.HANG))
    with client_of(lane) as client:
        with client.chat_stream("hi") as stream:
            for _ in stream:
                break
        assert stream.asynchronous.state is StreamState.CLOSED
        lane.reply = replies(stream_of(delta(content="a"), delta("stop"), DONE))
        with client.chat_stream("hi") as stream:
            assert stream.result().text == "a"


def test_closing_twice_is_closing(lane: ScriptedLane) -> None:
    """By hand inside the block too."""
    with Client(lane.url + "/v1") as client:
        client.chat("hi")
        client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            client.chat("hi")
    client.close()


def test_errors_are_the_same(lane: ScriptedLane) -> None:
    """And the client stays usable after one."""
    lane.reply = replies(error_reply(400))
    with client_of(lane) as client:
        with pytest.raises(errors.InvalidRequest):
            client.chat("hi")
        lane.reply = replies(said("yes"))
        assert client.chat("hi").text == "yes"


def test_agents_are_waited_for(lane: ScriptedLane) -> None:
    """Any coroutine of the asynchronous client."""
    lane.reply = replies(completion_reply(stream=False))
    lane.reply = replies(said("done"))
    with client_of(lane) as client:
        assert client.wait(Agent(client.asynchronous).run("go")).output == "done"


def test_an_agent_is_followed(lane: ScriptedLane) -> None:
    """Event by event, the result last; a run that is left early frees its connection and its session."""
    with client_of(lane) as client:
        agent, session = Agent(client.asynchronous), Session()
        lane.reply = replies(stream_of(delta(content="do"), delta(content="ne"), delta("stop"), DONE))
        with client.iterate(agent.stream("go", session=session)) as events:
            kinds = [type(event) for event in events]
        assert kinds == [TextDelta, TextDelta, Turn, AgentResult] and len(session.messages) == 2
        lane.reply = replies(stream_of(delta(content="a"), Fault.HANG))
        with client.iterate(agent.stream("go", session=session)) as events:
            assert next(events) == TextDelta("a")
        lane.reply = replies(error_reply(400))
        with pytest.raises(errors.InvalidRequest), client.iterate(agent.stream("go", session=session)) as events:
            list(events)
        assert len(session.messages) == 2


async def test_inside_an_event_loop_it_refuses() -> None:
    """There the asynchronous client is the right one."""
    client = Client("http://127.0.0.1:1/v1")
    coroutine = client.asynchronous.models()
    with pytest.raises(RuntimeError, match="event loop"):
        client.wait(coroutine)
    coroutine.close()


def test_runs(lane: ScriptedLane) -> None:
    """Begun, followed, taken up behind the last event that was read, waited for, cancelled, forgotten."""
    run = {"id": "run_1", "status": "in_progress"}
    events = [delta(content=piece) for piece in "abcd"] + [delta("stop"), DONE]

    def behind(request: Recorded) -> Reply:
        after = int(request.headers.get("last-event-id", 0))
        return stream_of(*(b"id: %d\n%b" % (n, data) for n, data in enumerate(events, 1) if n > after))

    lane.reply = replies(json_reply(run, 202))
    lane.overrides |= {"/outrider/runs/run_1": json_reply(run), "/outrider/runs/run_1/events": behind}
    lane.overrides["/outrider/runs/run_1/cancel"] = json_reply(run | {"status": "cancelled"})
    with client_of(lane) as client:
        begun = client.runs.start("Write.", task="creative")
        with client.runs.events(begun.id) as stream:
            assert [next(stream), next(stream)] == [TextDelta("a"), TextDelta("b")]
            seen = stream.last_event_id
        assert seen == 2
        with client.runs.events(begun.id, after=seen) as stream:
            assert stream.result().text == "cd"
        assert client.runs.result(begun.id).text == "abcd"
        assert not client.runs.get(begun.id).is_over and client.runs.cancel(begun.id).is_over
        client.runs.delete(begun.id)
    assert lane.requests[1].json()["outrider"] == {"task": "creative", "background": True}
    assert lane.requests[-1].method == "DELETE"


def test_responses(lane: ScriptedLane) -> None:
    """Made, streamed and kept ones."""
    done = {"id": "resp_1", "status": "completed", "output": []}
    events = stream_of(
        event({"type": "response.output_text.delta", "sequence_number": 1, "delta": "a"}),
        event({"type": "response.completed", "sequence_number": 2, "response": done}),
    )
    kept = "/v1/responses/resp_1"
    lane.overrides[kept] = lambda request: events if "stream" in request.query else json_reply(done)
    lane.overrides[kept + "/cancel"] = json_reply(done)
    lane.overrides[kept + "/input_items"] = json_reply({"data": [{"id": "i"}]})
    lane.overrides["/v1/responses"] = events
    with client_of(lane) as client:
        with client.responses.stream("hi") as stream:
            assert [one.delta for one in stream] == ["a", None]
        with client.responses.events("resp_1", after=0) as stream:
            assert stream.result().id == "resp_1"
        lane.overrides["/v1/responses"] = json_reply(done)
        assert client.responses("hi").id == client.responses.get("resp_1").id == "resp_1"
        assert client.responses.cancel("resp_1").status == "completed"
        assert [item.id for item in client.responses.input_items("resp_1")] == ["i"]
        client.responses.delete("resp_1")


def test_a_derived_client_shares_loop_and_connections(lane: ScriptedLane) -> None:
    """With other settings, until either is closed."""
    with client_of(lane) as client:
        other = client.with_options(api_key="two", headers={"x-team": "b"})
        client.chat("hi")
        other.chat("hi")
        lane.overrides["/any"] = json_reply({"a": 1})
        assert other.request("GET", "/any", extra_query={"q": "x"}).json() == {"a": 1}
        sent = [request.headers.get("authorization") for request in lane.requests if request.method == "POST"]
        assert sent == [None, "Bearer two"] and lane.num_connections == 1
        assert (lane.requests[-1].query, lane.requests[-1].headers["x-team"]) == ("q=x", "b")
        lane.reply = replies(completion_reply(stream=True))
        with other.completions_stream("hi") as stream:
            assert stream.result().text == "The quick brown fox jumps."
        with pytest.raises(TypeError, match="limits"):
            client.with_options(limits=ConnectionLimits())
        other.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            client.chat("hi")


def test_a_stream_is_told_the_errors_of_its_block_alone(lane: ScriptedLane) -> None:
    """Not one that its caller is handling; what it says of its block's is heeded."""
    told: list[str] = []

    async def events() -> AsyncIterator[int]:
        yield 1

    @asynccontextmanager
    async def stream() -> AsyncIterator[AsyncIterator[int]]:
        try:
            yield events()
        except ValueError as error:
            told.append(str(error))

    with client_of(lane) as client:
        try:
            raise ValueError("the caller's")
        except ValueError:
            with client.iterate(stream()) as seen:
                assert list(seen) == [1]
        assert told == []
        with client.iterate(stream()):
            raise ValueError("the block's")
        assert told == ["the block's"]
        with pytest.raises(KeyError), client.iterate(stream()):
            raise KeyError("not taken")
