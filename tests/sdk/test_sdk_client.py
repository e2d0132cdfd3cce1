"""Whole answers: what is sent, and what comes back."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs

import pytest
from sdk_wire import REPORT, SOON, USAGE, called

from outrider import AsyncClient, ConnectionFailed, ConnectionLimits, Finished, Hints, TextDelta, Timeouts, errors
from outrider.runtimes.scripted_replies import (
    SENTENCE,
    Fault,
    Reply,
    chat_reply,
    completion_reply,
    error_reply,
    json_reply,
)
from outrider.version import __version__

GOOD = chat_reply(stream=False)


def answer(**fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "hello"}
    return {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]} | fields


async def test_a_whole_answer(connect: Any) -> None:
    """Text, reason, usage, report and id are typed; unknown fields are kept at every level."""
    usage = {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    wire = answer(usage=usage, outrider=REPORT, metadata={"weight_version": "v"})
    async with connect(json_reply(wire, headers=[("X-Request-Id", "q7")])) as (_, client):
        result = await client.chat("hi")
    assert (result.text, result.finish_reason, result.request_id) == ("hello", "stop", "q7")
    assert result.usage.completion_tokens == 3
    assert result.usage.model_extra == {"prompt_tokens_details": {"cached_tokens": 1}}
    assert result.report.effective.k == 4 and result.report.observed.accepted_histogram == [1, 2]
    assert result.report.model_extra == {"field_of_a_later_version": True}
    assert result.raw == wire


async def test_a_server_that_is_not_outrider(connect: Any) -> None:
    """Plain OpenAI answers have no report and no request id."""
    async with connect() as (_, client):
        result = await client.chat("hi")
    assert result.text == "".join(SENTENCE)
    assert result.report is None and result.request_id is None


async def test_what_is_sent(connect: Any) -> None:
    """One JSON body, our user agent, the key, and the number of retries."""
    async with connect(api_key="secret") as (lane, client):
        await client.chat([{"role": "user", "content": "hi"}], temperature=0.5, task="code", drafter="ngram", k=4)
        (request,) = lane.requests
        assert request.json() == {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": False,
            "temperature": 0.5,
            "outrider": {"task": "code", "drafter": "ngram", "k": 4},
        }
        assert request.headers["content-type"] == "application/json"
        assert request.headers["user-agent"] == f"outrider/{__version__}"
        assert request.headers["authorization"] == "Bearer secret"
        assert request.headers["x-outrider-retry-count"] == "0"


async def test_models_and_the_default_model(connect: Any) -> None:
    """Without a model the first listed one is taken, and asked for once; a call's own model wins."""
    async with connect(model=None) as (lane, client):
        (model,) = await client.models()
        assert model.id == "first-model" and model.model_extra["max_model_len"] == 8192
        await client.chat("a")
        await client.chat("b", model="other")
        await client.chat("c")
        paths = [request.path for request in lane.requests]
        assert paths == ["/v1/models", "/v1/models", *["/v1/chat/completions"] * 3]
        assert [request.json()["model"] for request in lane.requests[2:]] == ["first-model", "other", "first-model"]


async def test_a_server_without_models(connect: Any) -> None:
    """There is no default to take."""
    async with connect(model=None) as (lane, client):
        lane.overrides["/v1/models"] = json_reply({"object": "list", "data": []})
        with pytest.raises(errors.ModelNotFound, match="no models"):
            await client.chat("hi")


async def test_wrong_arguments_fail_before_anything_is_sent(connect: Any) -> None:
    """Hints and messages are checked at the call, in both forms."""
    async with connect() as (lane, client):
        with pytest.raises(ValueError, match=r"^k: "):
            await client.chat("hi", k=99)
        with pytest.raises(TypeError, match="both given"):
            client.chat_stream("hi", hints=Hints(), k=1)
        with pytest.raises(TypeError, match="messages"):
            client.chat_stream(None)
        assert lane.requests == []


async def test_concurrent_calls_share_the_client(connect: Any, until: Any) -> None:
    """Calls do not wait for each other."""
    async with connect(chat_reply(stream=False), max_retries=0) as (lane, client):
        goes_on = asyncio.Event()
        lane.reply = lambda _: Reply(steps=(goes_on, *GOOD.steps))
        asked = asyncio.gather(*(client.chat("hi") for _ in range(32)))
        await until(lambda: lane.num_open == 32)
        goes_on.set()
        assert len(await asked) == 32


async def test_a_closed_client_says_so(connect: Any) -> None:
    """Calls after the block are a mistake of the program."""
    async with connect() as (_, client):
        await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await client.chat("hi")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"base_url": "localhost:8000"}, "base_url"),
        ({"base_url": "ftp://host/v1"}, "base_url"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1.0}, "timeout"),
        ({"proxy": "localhost"}, "proxy"),
        ({"max_retries": -1}, "max_retries"),
    ],
)
def test_wrong_options_are_named(options: Any, name: str) -> None:
    """A client that could not work is not made."""
    with pytest.raises(ValueError, match=f"^{name} must"):
        AsyncClient(**options)


async def test_completions_whole_and_streamed(connect: Any) -> None:
    """A text or token ids go to their own route; the result and the events are those of a chat."""
    async with connect(completion_reply(stream=False), completion_reply(stream=True)) as (lane, client):
        whole = await client.completions("def add", max_tokens=3, task="code")
        async with client.completions_stream([1, 2]) as stream:
            events = [event async for event in stream]
        first, second = [request.json() for request in lane.requests]
        assert {request.path for request in lane.requests} == {"/v1/completions"}
    assert whole.text == "".join(SENTENCE) and whole.usage.completion_tokens == 6
    assert events[0] == TextDelta("The") and isinstance(events[-1], Finished)
    assert first == {
        "model": "m", "prompt": "def add", "stream": False, "max_tokens": 3, "outrider": {"task": "code"},
    }  # fmt: skip
    assert second["prompt"] == [1, 2] and second["stream"] is True


async def test_tool_calls_are_typed(connect: Any) -> None:
    """Names, arguments and ids, in the model's order."""
    async with connect(called(("f", "{}"), ("g", '{"a": 1}'), text="I call.")) as (_, client):
        result = await client.chat("hi")
    assert [(c.id, c.function.name, c.function.arguments) for c in result.tool_calls] == [
        ("c0", "f", "{}"), ("c1", "g", '{"a": 1}'),
    ]  # fmt: skip
    assert (result.text, result.finish_reason, result.usage.model_dump()) == ("I call.", "tool_calls", USAGE)


async def test_any_route_as_it_answers(connect: Any) -> None:
    """Status, headers and bytes; errors are raised as those of the other methods."""
    async with connect() as (lane, client):
        lane.overrides["/outrider/lanes"] = json_reply({"lanes": []}, headers=[("X-Request-Id", "q3")])
        raw = await client.request("GET", "/outrider/lanes", extra_headers={"x-one": "1"})
        assert (raw.head.status, raw.head.request_id, raw.json()) == (200, "q3", {"lanes": []})
        assert lane.requests[0].headers["x-one"] == "1" and raw.head.num_retries == 0
        with pytest.raises(errors.RequestError):
            await client.request("GET", "/nothing")


async def test_options_of_a_derived_client(connect: Any) -> None:
    """Over the same connections; what is not named stays, and the first client does not change."""
    async with connect(headers={"x-team": "a"}, api_key="one") as (lane, client):
        other = client.with_options(api_key="two", max_retries=0, model="other", headers={"x-team": "b"})
        await client.chat("hi")
        await other.chat("hi")
        await client.chat("hi", extra_headers={"x-team": "c"})
        sent = [(r.headers["authorization"], r.headers["x-team"], r.json()["model"]) for r in lane.requests]
        assert lane.num_connections == 1
        with pytest.raises(TypeError, match="limits"):
            client.with_options(limits=ConnectionLimits())
        with pytest.raises(ValueError, match="max_retries"):
            client.with_options(max_retries=-1)
        await other.close()
        with pytest.raises(RuntimeError, match="closed"):
            await client.chat("hi")
    assert sent == [("Bearer one", "a", "m"), ("Bearer two", "b", "other"), ("Bearer one", "c", "m")]


async def test_headers_of_an_answer(connect: Any) -> None:
    """Names in lower case, and how often it was tried, whole or streamed."""
    reply = json_reply(answer(), headers=[("X-Outrider-Lane", "embedded"), ("x-request-id", "q4")])
    async with connect(error_reply(503, headers=[SOON]), reply) as (_, client):
        result = await client.chat("hi")
    assert (result.head.headers["x-outrider-lane"], result.head.num_retries) == ("embedded", 1)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Timeouts(event_s=0), "event_s"),
        (lambda: Timeouts(pool_s=-1), "pool_s"),
        (lambda: ConnectionLimits(max_connections=0), "max_connections"),
        (lambda: AsyncClient(colour="red"), "colour"),
    ],
)
def test_wrong_settings_are_named(make: Any, name: str) -> None:
    """By their own name."""
    with pytest.raises((ValueError, TypeError), match=name):
        make()


@pytest.mark.parametrize(("method", "num_requests"), [("POST", 1), ("PATCH", 1), ("GET", 2), ("DELETE", 2)])
async def test_a_route_is_asked_again_where_that_cannot_double(connect: Any, method: str, num_requests: int) -> None:
    """What a POST to some route does is not known, so that a broken one is the caller's to repeat."""
    async with connect() as (lane, client):
        replies = [Reply(steps=(Fault.CLOSE,)), json_reply({})]
        lane.overrides["/any"] = lambda _: replies[len(lane.requests) - 1]
        if num_requests == 1:
            with pytest.raises(ConnectionFailed):
                await client.request(method, "/any", {})
        else:
            await client.request(method, "/any")
        assert len(lane.requests) == num_requests


async def test_parameters_of_the_address(connect: Any) -> None:
    """Of every kind of call; what has a meaning in addresses is escaped."""
    query = {"api-version": "1 & 2", "n": 3}
    async with connect(GOOD, chat_reply(stream=True), completion_reply(stream=False)) as (lane, client):
        await client.chat("hi", extra_query=query)
        async with client.chat_stream("hi", extra_query=query) as stream:
            await stream.result()
        await client.completions("hi", extra_query=query)
        lane.overrides["/any"] = json_reply({})
        await client.request("GET", "/any", extra_query=query)
        assert [parse_qs(request.query) for request in lane.requests] == [{"api-version": ["1 & 2"], "n": ["3"]}] * 4
        await client.request("GET", "/any")
        assert lane.requests[-1].query == ""


async def test_every_result_has_its_answer_as_it_came(connect: Any) -> None:
    """Status, headers, request id and body, of whole answers and of streams."""
    headers = [("X-Request-Id", "q5"), ("X-Outrider-Plan", "ngram;k=3")]
    wire = answer(later={"a": 1})
    async with connect(json_reply(wire, 200, headers)) as (lane, client):
        chat, completion = await client.chat("hi"), await client.completions("hi")
        assert chat.raw == completion.raw == wire
        streamed = chat_reply(stream=True)
        lane.reply = lambda _: Reply(200, (*streamed.headers, *headers), streamed.steps)
        async with client.chat_stream("hi") as stream:
            assert stream.request_id == "q5"  # before anything is read
            result = await stream.result()
        for head in (chat.head, completion.head, stream.head, result.head):
            assert (head.status, head.request_id, head.headers["x-outrider-plan"]) == (200, "q5", "ngram;k=3")
