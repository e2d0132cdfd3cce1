"""Where a gateway listens: address, port and TLS; and what is told to those who do not speak HTTP there."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from outrider.config import ServerSection
from outrider.errors import APIError, ConfigError, InvalidRequest

logger = logging.getLogger(__name__)

#: Cancelled handlers get this long to unwind.
_UNWIND_S = 0.25
#: Writes the answer to a request that could not be read, and counts it.
Refuse = Callable[[web.BaseRequest, APIError], web.Response]


class Runner(web.AppRunner):
    """Of an application. A request that cannot be read is refused in the shape of all errors, and nothing of it is
    logged, since keys and prompts may stand in it: the library would log and answer with its bytes."""

    def __init__(self, app: web.Application, server: ServerSection, refuse: Refuse) -> None:
        super().__init__(
            app,
            handler_cancellation=True,  # else a client that leaves would not be noticed before the next write
            access_log=None,
            shutdown_timeout=_UNWIND_S,
            keepalive_timeout=server.idle_timeout_s,
            max_line_size=server.max_header_bytes,
            max_field_size=server.max_header_bytes,
        )
        self._refuse = refuse

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(self._refuse, made.request_handler, request_factory=made.request_factory, **self._kwargs)


class _Server(web.Server):
    def __init__(self, refuse: Refuse, handler: Any, **options: Any) -> None:
        super().__init__(handler, **options)
        self._refuse = refuse

    def __call__(self) -> web.RequestHandler:
        return _Connection(self._refuse, self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    __slots__ = ("_refuse",)

    def __init__(self, refuse: Refuse, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._refuse = refuse

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """See `Runner`; of other errors, what the library does."""
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        response = self._refuse(request, _unreadable(exc))
        response.force_close()
        return response


def _unreadable(error: HttpProcessingError) -> APIError:
    logger.info("a request cannot be read: %s", type(error).__name__)
    if isinstance(error, LineTooLong):
        return InvalidRequest("a header, or the request line, is over the limit")
    return InvalidRequest("the request is not valid HTTP")


async def listen(runner: web.AppRunner, server: ServerSection, *, shares_port: bool) -> str:
    """The URL; `shares_port` when other processes listen there too. ConfigError when it cannot be listened on."""
    tls = _tls(server)
    try:
        await web.TCPSite(runner, server.host, server.port, ssl_context=tls, reuse_port=shares_port or None).start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {server.host}:{server.port}: {error.strerror}") from error
    host, port = runner.addresses[0][:2]
    return f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


def _tls(server: ServerSection) -> ssl.SSLContext | None:
    if server.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(server.tls_certificate, server.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"server.tls_certificate: {server.tls_certificate} cannot be used: {error}") from error
    return context
