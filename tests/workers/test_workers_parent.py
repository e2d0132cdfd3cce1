"""What the parent sees to be wrong before it starts anything. The rest is in `tests/e2e/test_e2e_workers.py`."""

from __future__ import annotations

import socket

import pytest

from outrider.config import AdmissionSection, AuthSection, Config, KeySection, ServerSection
from outrider.errors import ConfigError
from outrider.workers.parent import Workers, run

KEY = KeySection(name="a", sha256="0" * 64, max_concurrent=2)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (Config(admission=AdmissionSection(max_in_flight=2)), "admission.max_in_flight is 2, of which 3 workers"),
        (Config(auth=AuthSection(keys=(KEY,))), "max_concurrent of the key a is 2, of which 3 workers"),
    ],
    ids=["places", "key"],
)
async def test_limits_that_cannot_be_shared_stop_the_start(config, problem):
    """By their names."""
    with pytest.raises(ConfigError, match=problem):
        await run(config, Workers(3))


async def test_a_port_that_is_taken_stops_the_start():
    """Before any process is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = ServerSection(port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{server.port}"):
            await run(Config(server=server), Workers(2))
