"""The blocking client: the same answers, streams and errors without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from sdk_wire import DONE, delta, said, stream_of

from outrider import Agent, Client, Finished, StreamState, TextDelta, errors
from outrider.runtimes.scripted import (
    Fault,
    Reply,
    ScriptedLane,
    chat_reply,
    completion_reply,
    error_reply,
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


async def test_inside_an_event_loop_it_refuses() -> None:
    """There the asynchronous client is the right one."""
    client = Client("http://127.0.0.1:1/v1")
    coroutine = client.asynchronous.models()
    with pytest.raises(RuntimeError, match="event loop"):
        client.wait(coroutine)
    coroutine.close()
