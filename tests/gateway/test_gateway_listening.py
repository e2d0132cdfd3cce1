"""Requests that cannot be read: refused in the shape of all errors, counted, and nothing of them is logged."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from gateway.world import CHAT, world

POST = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
KEY = b"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer private"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (KEY + b"k" * 2000 + b"\r\n\r\n", "over the limit"),
        (b"GET /health?key=private" + b"k" * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", "over the limit"),
        (KEY + b"\x01\r\n\r\n", "not valid HTTP"),
        (b"private question\r\n\r\n", "not valid HTTP"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nprivate\r\n", "not valid HTTP"),
        (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nprivate", "not valid HTTP"),
        (KEY + b"\r\nX: y" * 300 + b"\r\n\r\n", "not valid HTTP"),
    ],
)
async def test_a_request_that_cannot_be_read_is_refused_in_shape(caplog, sent, said):
    """By a 400 with an id, and the end of the connection; keys and prompts may stand in what cannot be read."""
    caplog.set_level("DEBUG")
    async with world(server={"max_header_bytes": 1024}) as w:
        reader, writer = await asyncio.open_connection(*w.gateway.url.removeprefix("http://").split(":"))
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert await w.metric('outrider_requests_total{route="unmatched",status="400"}') == 1
    told = dict(line.split(": ") for line in head.decode().lower().split("\r\n")[1:])
    error = orjson.loads(body)["error"]
    assert b" 400 " in head.partition(b"\r\n")[0] and said in error.pop("message")
    assert error == {"type": "invalid_request_error", "param": None, "code": "invalid_request"}
    assert len(told["x-request-id"]) == 32 and told["x-outrider-error"] == "invalid_request"
    assert "private" not in caplog.text + body.decode()
    assert f'"request_id":"{told["x-request-id"]}"' in caplog.text
