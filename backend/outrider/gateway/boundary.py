"""The edge of the gateway: request ids, and the one place where exceptions become answers in the route's shape."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from functools import lru_cache

import orjson
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import SERVER_SOFTWARE
from aiohttp.typedefs import Middleware

from outrider.dispatch.dispatcher import CLIENT_LEFT
from outrider.errors import APIError, BodyTooLarge, InternalError, InvalidRequest, MethodNotAllowed, RouteNotFound
from outrider.gateway.access import KEY
from outrider.runtimes.client import fresh_id
from outrider.runtimes.dialects import dialect_of
from outrider.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
#: One JSON object per request; neither bodies nor keys stand in it.
access_log = logging.getLogger("outrider.access")

REQUEST_ID = web.RequestKey("request_id", str)
#: Headers that go out with the answer whatever it is, an error too.
ALWAYS_HEADERS = web.RequestKey("always_headers", dict[str, str])
_HEAD_SENT = web.RequestKey("head_sent", bool)

_GOOD_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def boundary(metrics: Metrics) -> Middleware:
    """The outermost middleware. Whatever happens inside, the client gets an answer in shape."""

    @web.middleware
    async def middleware(request: web.Request, handler: _Handler) -> web.StreamResponse:
        began_s = time.monotonic()
        request[REQUEST_ID] = _request_id(request)
        status = CLIENT_LEFT
        try:
            response = await _answer(request, handler)
            status = response.status
            return response
        finally:
            _note(metrics, request, _route(request), status, time.monotonic() - began_s)

    return middleware


def refusing(metrics: Metrics) -> Callable[[web.BaseRequest, APIError], web.Response]:
    """The same for requests that cannot even be read: they meet no middleware."""

    def refuse(request: web.BaseRequest, error: APIError) -> web.Response:
        request[REQUEST_ID] = fresh_id()
        _note(metrics, request, "unmatched", error.status, 0.0)
        response = _error_response("", error)
        response.headers["x-request-id"] = request[REQUEST_ID]
        return response

    return refuse


def _note(metrics: Metrics, request: web.BaseRequest, route: str, status: int, total_s: float) -> None:
    metrics.answered(route, status)
    if access_log.isEnabledFor(logging.INFO):
        access_log.info("%s", _access_line(request, route, status, total_s))


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer of our own, as JSON."""
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json", headers=headers)


class Whole(web.StreamResponse):
    """A whole answer in one write; aiohttp's own way there, header by header, takes as long as a decision does."""

    def __init__(self, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._told = body, headers
        self._is_kept = False
        self._writer: AbstractStreamWriter | None = None

    @property
    def keep_alive(self) -> bool:
        """Whether the connection is, after it."""
        return self._is_kept

    def send(self, request: web.BaseRequest) -> None:
        """All of it at once, without waiting, unless the client has left: what is still to do need not delay it."""
        transport = request.transport
        if transport is None or transport.is_closing():
            return
        (body, headers), self._is_kept, self._writer = self._told, request.keep_alive, request.writer
        told = {
            **headers, "Content-Length": str(len(body)), "Date": _date(int(time.time())), "Server": SERVER_SOFTWARE,
            "x-request-id": request[REQUEST_ID], **request.get(ALWAYS_HEADERS, {}),
        }  # fmt: skip
        if self._is_kept is not (request.version >= HttpVersion11):
            told["Connection"] = "keep-alive" if self._is_kept else "close"
        head = "\r\n".join(map(": ".join, told.items()))
        if head.count("\n") != len(told) - 1 or head.count("\r") != len(told) - 1:
            raise ValueError("a header holds a line end")
        line = f"HTTP/{request.version.major}.{request.version.minor} 200 OK\r\n"
        data = f"{line}{head}\r\n\r\n".encode("utf-8", "surrogateescape") + body
        request[_HEAD_SENT] = True
        self._writer.output_size += len(data)  # so that the library knows, too, that no second status can be sent
        transport.write(data)

    async def prepare(self, request: web.BaseRequest) -> None:
        """Has been sent already, or is now. ConnectionResetError when the client has left."""
        if self._writer is None:
            self.send(request)
        if self._writer is None:
            raise ConnectionResetError("the client has left")

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing more comes; a client that reads slowly is waited for."""
        if self._writer is not None:
            await self._writer.drain()


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)


def _access_line(request: web.BaseRequest, route: str, status: int, total_s: float) -> str:
    key = request.get(KEY)
    headers = request.get(ALWAYS_HEADERS, {})
    ours = ("lane", "workload", "drafter", "k")
    line = {
        "request_id": request[REQUEST_ID],
        "method": request.method,
        "route": route,
        "status": status,
        "total_s": round(total_s, 6),
        "remote": request.remote,
        "key": None if key is None else key.section.name,
        "tenant": None if key is None else key.tenant,
        **{name: headers[f"x-outrider-{name}"] for name in ours if f"x-outrider-{name}" in headers},
    }
    return orjson.dumps(line).decode()


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Runs before every head that goes out."""
    request[_HEAD_SENT] = True
    response.headers["x-request-id"] = request.get(REQUEST_ID) or fresh_id()
    response.headers.update(request.get(ALWAYS_HEADERS, {}))


async def _answer(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except APIError as error:
        return _error_response(request.path, error)
    except web.RequestPayloadError as error:
        return _error_response(request.path, InvalidRequest(f"the body cannot be read: {error}", param="body"))
    except web.HTTPException as error:
        return _error_response(request.path, _from_aiohttp(request, error), error.headers)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
            return web.Response(status=CLIENT_LEFT)  # goes nowhere: there is nobody to read it
        if _HEAD_SENT in request:
            raise  # a second status cannot be sent: aiohttp logs the error and closes the connection
        logger.exception("request %s failed", request[REQUEST_ID])
        failure = InternalError(f"internal error; the log has it under request id {request[REQUEST_ID]}")
        return _error_response(request.path, failure)


def _request_id(request: web.Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _GOOD_ID.fullmatch(given) else fresh_id()


def _route(request: web.Request) -> str:
    """The pattern, not the path: paths are as many as clients like."""
    resource = request.match_info.route.resource
    return "unmatched" if resource is None else resource.canonical


def _error_response(path: str, error: APIError, headers: Mapping[str, str] | None = None) -> web.Response:
    kept = {"x-should-retry": str(error.is_retryable).lower()}
    if error.code is not None:  # for balancers and logs, which read no bodies
        kept["x-outrider-error"] = error.code
    if headers and "Allow" in headers:
        kept["Allow"] = headers["Allow"]
    if error.retry_after_s is not None:
        kept["Retry-After"] = str(math.ceil(error.retry_after_s))
        kept["retry-after-ms"] = str(math.ceil(1000 * error.retry_after_s))
    body = orjson.dumps(dialect_of(path).error_body(error))
    return web.Response(status=error.status, body=body, content_type="application/json", headers=kept)


def _from_aiohttp(request: web.Request, error: web.HTTPException) -> APIError:
    if isinstance(error, web.HTTPNotFound):
        return RouteNotFound(f"there is no route {request.method} {request.path}")
    if isinstance(error, web.HTTPMethodNotAllowed):
        return MethodNotAllowed(f"{request.path} does not take {request.method}")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return BodyTooLarge("the body is over the limit")
    return InvalidRequest(f"the request cannot be read: {error.reason}")
