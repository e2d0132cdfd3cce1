"""The address that workers share: kept, free, and nobody else's."""

from __future__ import annotations

import socket

import pytest

from outrider.config import ServerSection
from outrider.errors import ConfigError
from outrider.workers.address import reserved


def listening(port, host="127.0.0.1"):
    """As a worker listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind((host, port))
    found.listen()
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_free_port_is_found_and_shared(host):
    """What holds it takes no connection: all reach the one who listens."""
    with reserved(ServerSection(host=host, port=0)) as port, listening(port) as one, listening(port) as other:
        one.settimeout(0.2)
        other.settimeout(0.2)
        clients = [socket.create_connection(("127.0.0.1", port), 2) for _ in range(40)]
        accepted = []
        for listener in (one, other):
            try:
                while True:
                    accepted.append(listener.accept()[0])
            except TimeoutError:
                continue
        assert len(accepted) == 40
        for each in (*clients, *accepted):
            each.close()


def test_a_port_with_workers_of_another_gateway_is_taken():
    """Although their sockets would share it."""
    with (
        reserved(ServerSection(port=0)) as port,
        listening(port),
        pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already"),
        reserved(ServerSection(port=port)),
    ):
        pass
    with reserved(ServerSection(port=port)) as again:
        assert again == port


def test_an_address_that_is_not_here_is_refused():
    """With its name."""
    with (
        pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"),
        reserved(ServerSection(host="192.0.2.1")),
    ):
        pass
