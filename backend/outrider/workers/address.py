"""The address that all workers listen on: found free, and kept for them, before any of them starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from outrider.config import ServerSection
from outrider.errors import ConfigError


@contextmanager
def reserved(server: ServerSection) -> Iterator[int]:
    """The port, a free one for 0. Held for the block by sockets that are bound and do not listen, so that the kernel
    gives every connection to some worker. ConfigError when somebody listens there, another gateway's workers too."""
    with ExitStack() as stack:
        port = server.port
        try:
            found = socket.getaddrinfo(server.host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
                where = (address[0], port, *address[2:])
                if port:
                    with _socket(family) as alone:  # sockets that share a port do so with anybody who shares it
                        alone.bind(where)
                held = stack.enter_context(_socket(family))
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                held.bind(where)
                port = held.getsockname()[1]
        except OSError as error:
            raise ConfigError(f"cannot listen on {server.host}:{port}: {error.strerror}") from error
        yield port


def _socket(family: int) -> socket.socket:
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return found
