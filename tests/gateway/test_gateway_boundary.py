from __future__ import annotations

import asyncio
import logging
import re

import aiohttp
import pytest
from aiohttp import web

from gateway.world import CHAT, world
from outrider.gateway.boundary import ALWAYS_HEADERS, Whole, add_headers, boundary
from outrider.telemetry.metrics import Metrics


async def error_of(response):
    body = await response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize("given", ["abc-1.2_X", "a" * 128])
async def test_a_good_request_id_is_echoed(given):
    """On a success and on an error, and the lane gets it too."""
    async with world() as w:
        async with w.post(
            {"messages": [{"role": "user", "content": "x"}]}, headers={"x-request-id": given}
        ) as response:
            assert response.status == 200
            assert response.headers["x-request-id"] == given
        assert w.upstream.headers["x-request-id"] == given
        async with w.post(b"{", headers={"x-request-id": given}) as response:
            assert response.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", "ü", "a/b"])
async def test_a_bad_request_id_is_replaced(given):
    """By 32 fresh hexadecimal digits."""
    async with world() as w, w.post(b"{", headers={"x-request-id": given}) as response:
        assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


async def test_unknown_paths_and_methods_are_told_in_shape():
    """404 and 405 (with Allow) have the error shape and a request id."""
    async with world() as w:
        async with w.http.get(w.gateway.url + "/v1/embeddings") as response:
            assert (response.status, (await error_of(response))["code"]) == (404, "route_not_found")
            assert response.headers["x-request-id"] and response.headers["x-should-retry"] == "false"
            assert response.headers["x-outrider-error"] == (await response.json())["error"]["code"]
        async with w.http.get(w.gateway.url + CHAT) as response:
            assert (response.status, (await error_of(response))["code"]) == (405, "method_not_allowed")
            assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_another_content_type_is_415(kind):
    """Only JSON is read."""
    async with world() as w, w.post({}, headers={"Content-Type": kind}) as response:
        assert (response.status, (await error_of(response))["code"]) == (415, "unsupported_media_type")


async def test_a_content_type_with_a_charset_is_json():
    """Parameters of the type do not matter."""
    headers = {"Content-Type": "application/json; charset=utf-8"}
    async with world() as w, w.post({"messages": []}, headers=headers) as response:
        assert (await error_of(response))["param"] == "messages"


async def test_a_body_over_the_limit_is_413():
    """Announced by Content-Length, or found while reading."""

    async def chunks():
        for _ in range(40):
            yield b" " * 1024

    async with world(server={"max_body_bytes": 20_000}) as w:
        async with w.post(b" " * 20_001) as response:
            assert (response.status, (await error_of(response))["code"]) == (413, "body_too_large")
        headers = {"Content-Type": "application/json"}
        async with w.http.post(w.gateway.url + CHAT, data=chunks(), headers=headers) as response:
            assert (response.status, (await error_of(response))["code"]) == (413, "body_too_large")


async def test_a_body_that_cannot_be_decoded_is_400():
    """A content encoding that does not fit is the caller's fault, not ours."""
    async with world() as w, w.post(b"not gzip", headers={"Content-Encoding": "gzip"}) as response:
        assert response.status == 400
        await error_of(response)


async def test_an_unexpected_exception_is_500_and_logged_with_the_request_id(caplog):
    """The client learns nothing but the id; the log has the traceback."""

    async def broken(_request):
        raise RuntimeError("secret detail")

    app = web.Application(middlewares=[boundary(Metrics())])
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/", broken)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    with caplog.at_level(logging.ERROR):
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://{host}:{port}/", headers={"x-request-id": "id-1"}) as response,
        ):
            error = await error_of(response)
    await runner.cleanup()
    assert (response.status, error["code"]) == (500, "internal_error")
    assert "id-1" in error["message"] and "secret" not in error["message"]
    assert "id-1" in caplog.text and "secret detail" in caplog.text


async def test_requests_are_counted_by_route_and_status():
    """By the route's pattern; a path that matches none is `unmatched`."""
    async with world() as w:
        for path in ("/health", "/nope/1", "/nope/2", "/v1/models/x"):
            async with w.http.get(w.gateway.url + path) as response:
                await response.read()
        assert await w.metric('outrider_requests_total{route="/health",status="200"}') == 1
        assert await w.metric('outrider_requests_total{route="unmatched",status="404"}') == 2
        assert await w.metric('outrider_requests_total{route="/v1/models/{id}",status="404"}') == 1


@pytest.mark.parametrize(
    "version, asked",
    [("1.1", ""), ("1.1", "Connection: close\r\n"), ("1.0", ""), ("1.0", "Connection: keep-alive\r\n")],
)
async def test_a_whole_answer_is_as_the_library_writes_it(version, asked):
    """The same head, but for its order, the same body, and the connection kept or closed alike."""
    body, headers = b'{"\xc3\xbc": 1}', {"Content-Type": "application/json", "x-outrider-lane": "a"}

    async def whole(request: web.Request) -> web.StreamResponse:
        request[ALWAYS_HEADERS] = {"x-outrider-k": "3"}
        return Whole(body, headers)

    async def library(request: web.Request) -> web.StreamResponse:
        request[ALWAYS_HEADERS] = {"x-outrider-k": "3"}
        return web.Response(body=body, headers=headers)

    app = web.Application(middlewares=[boundary(Metrics())])
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/whole", whole)
    app.router.add_get("/library", library)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()

    async def answer(path: str) -> tuple[str, set[str], bytes]:
        reader, writer = await asyncio.open_connection(*runner.addresses[0])
        asking = f"GET {path} HTTP/{version}\r\nHost: a\r\nx-request-id: same\r\n{asked}\r\n"
        writer.write(asking.encode())
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        told = {line for line in lines if not line.startswith("Date: ")}
        assert len(lines) == len(told) + 1
        given = await reader.readexactly(len(body))
        if "Connection: close" in told or (version == "1.0" and not asked):
            assert await reader.read() == b""
        writer.close()
        return status, told, given

    assert await answer("/whole") == await answer("/library")
    await runner.cleanup()


async def test_a_header_with_a_line_end_is_not_written():
    """It would begin another header: the connection ends instead."""

    async def split(_request: web.Request) -> web.StreamResponse:
        return Whole(b"{}", {"x-a": "b\r\nx-c: d"})

    app = web.Application(middlewares=[boundary(Metrics())])
    app.router.add_get("/", split)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await http.get(f"http://{host}:{port}/")
    await runner.cleanup()


async def test_a_fault_behind_a_whole_answer_sends_no_second_one():
    """The client has its answer, and then the connection ends."""

    async def faulty(request: web.Request) -> web.StreamResponse:
        Whole(b"{}", {}).send(request)
        raise RuntimeError("behind the answer")

    app = web.Application(middlewares=[boundary(Metrics())])
    app.router.add_get("/", faulty)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    reader, writer = await asyncio.open_connection(*runner.addresses[0])
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = await reader.read()
    assert answer.count(b"HTTP/1.1 ") == 1 and answer.endswith(b"\r\n\r\n{}")
    writer.close()
    await runner.cleanup()
