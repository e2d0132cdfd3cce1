"""Where a gateway listens: address, port and TLS."""

from __future__ import annotations

import ssl

from aiohttp import web

from outrider.config import ServerSection
from outrider.errors import ConfigError


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
