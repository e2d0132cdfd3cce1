"""Errors of servers and connections as a client sees them: which are tried again, and what is raised."""

from __future__ import annotations

from typing import Any

import pytest
from sdk_wire import SOON, WIRE_ERRORS

from outrider import ConnectionFailed, errors
from outrider.runtimes.scripted_replies import SENTENCE, Fault, Reply, error_reply, json_reply
from sdk.test_sdk_client import GOOD


@pytest.mark.parametrize("kind", WIRE_ERRORS)
async def test_every_error_of_the_wire_comes_back_as_its_class(connect: Any, kind: Any) -> None:
    """Class, message, parameter and request id survive the way."""
    wire = kind("it failed", param="k").to_wire()
    async with connect(json_reply(wire, kind.status, [("x-request-id", "q1")]), max_retries=0) as (_, client):
        with pytest.raises(errors.APIError) as caught:
            await client.chat("hi")
    error = caught.value
    assert type(error) is kind
    assert (error.message, error.param, error.request_id) == ("it failed", "k", "q1")


@pytest.mark.parametrize("shape", ["flat", "object", "text"])
async def test_errors_of_a_bare_sglang_server(connect: Any, shape: Any) -> None:
    """The three shapes of SGLang are understood too."""
    async with connect(error_reply(400, shape, "bad value")) as (_, client):
        with pytest.raises(errors.InvalidRequest, match=r"^bad value$"):
            await client.chat("hi")


@pytest.mark.parametrize(
    ("body", "message"),
    [(b"<html>Bad gateway</html>", "HTTP 502: <html>Bad"), (b"", "HTTP 502"), (b"[]", "HTTP 502")],
)
async def test_an_error_that_is_not_json(connect: Any, body: bytes, message: str) -> None:
    """A proxy's page is quoted; its status decides."""
    async with connect(Reply(502, (), (body,)), max_retries=0) as (_, client):
        with pytest.raises(errors.ServiceError, match=message) as caught:
            await client.chat("hi")
        assert caught.value.status == 502


@pytest.mark.parametrize("reply", [Reply(steps=(b"not json",)), json_reply([]), json_reply({"choices": []})])
async def test_an_answer_of_another_form(connect: Any, reply: Reply) -> None:
    """A good status with a body that is no chat completion is a failure of the connection, tried once."""
    async with connect(reply) as (lane, client):
        with pytest.raises(ConnectionFailed, match="the server's answer"):
            await client.chat("hi")
        assert len(lane.requests) == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
async def test_statuses_that_are_tried_again(connect: Any, status: int) -> None:
    """The second attempt succeeds and says that it is the second."""
    async with connect(error_reply(status, headers=[SOON]), GOOD) as (lane, client):
        assert (await client.chat("hi")).text == "".join(SENTENCE)
        assert [request.headers["x-outrider-retry-count"] for request in lane.requests] == ["0", "1"]
        assert lane.requests[0].body == lane.requests[1].body


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (400, []),
        (404, []),
        (422, [SOON]),
        (503, [SOON, ("x-should-retry", "false")]),
        (429, [("retry-after", "121")]),
    ],
)
async def test_refusals_that_are_final(connect: Any, status: int, headers: Any) -> None:
    """The caller's faults, a server that says no, and a pause over two minutes are not tried again."""
    async with connect(error_reply(status, headers=headers), GOOD) as (lane, client):
        with pytest.raises(errors.APIError):
            await client.chat("hi")
        assert len(lane.requests) == 1


async def test_the_server_may_ask_for_a_retry(connect: Any) -> None:
    """`x-should-retry: true` beats a status that is otherwise final."""
    async with connect(error_reply(400, headers=[SOON, ("x-should-retry", "true")]), GOOD) as (lane, client):
        await client.chat("hi")
        assert len(lane.requests) == 2


@pytest.mark.parametrize("max_retries", [0, 1, 2])
async def test_the_last_error_is_raised_when_retries_run_out(connect: Any, max_retries: int) -> None:
    """`max_retries` further attempts and no more; the error says what pause the server wanted."""
    async with connect(error_reply(503, headers=[SOON]), max_retries=max_retries) as (lane, client):
        with pytest.raises(errors.ServiceError) as caught:
            await client.chat("hi")
        assert caught.value.retry_after_s == pytest.approx(0.001)
        assert len(lane.requests) == 1 + max_retries


@pytest.mark.parametrize("steps", [(Fault.CLOSE,), (Fault.RESET,), (b'{"choices":', 0.01, Fault.CLOSE)])
async def test_broken_connections_are_tried_again(connect: Any, steps: Any) -> None:
    """Before the head or in the body: a whole answer that did not arrive may be asked for again."""
    async with connect(Reply(steps=steps), GOOD) as (lane, client):
        assert (await client.chat("hi")).text == "".join(SENTENCE)
        assert len(lane.requests) == 2
