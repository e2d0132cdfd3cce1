"""A crew of real processes: what becomes of workers that hang before they listen, while they serve, or at the end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest

from gateway.world import eventually
from outrider.app import looking_after
from outrider.config import Config, ServerSection, UrlSection
from outrider.errors import SetupError
from outrider.workers.address import reserved
from outrider.workers.crew import Bounds, Crew
from outrider.workers.member import Setup
from processes import is_alive

FAR = UrlSection(name="far", kind="url", urls=("http://127.0.0.1:9",))


@asynccontextmanager
async def crew_of(count, bounds):
    """Not started; it is stopped at the end."""
    server = ServerSection(port=0, shutdown_grace_s=0.2)
    with reserved(server) as port:
        config = Config(server=server.model_copy(update={"port": port}), lanes=(FAR,))
        async with looking_after(config) as gateway:
            setup = Setup(index=0, count=count, config=config, lanes={}, drained=frozenset())
            crew = Crew(gateway, setup, bounds)
            try:
                yield crew, gateway
            finally:
                await crew.stop()


def pids_of(crew):
    return [int(pid) for pid in re.findall(r"pid (\d+)", repr(crew))]


async def first_worker(crew):
    async with asyncio.timeout(60):
        while not (found := pids_of(crew)):
            await asyncio.sleep(0.005)
    return found[0]


async def test_a_worker_that_hangs_before_it_listens_stops_the_start():
    """After the bound it is killed, and the start says that there is none."""
    async with crew_of(1, Bounds(start_s=2.0)) as (crew, _):
        starting = asyncio.create_task(crew.start())
        pid = await first_worker(crew)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(SetupError, match="worker 0 ended with exit code -9 before it listened"):
            async with asyncio.timeout(60):
                await starting
        assert not is_alive(pid)


async def test_a_worker_that_hangs_while_it_serves_is_replaced():
    """One that is only slow to answer once is not, and the address is served again."""
    async with crew_of(1, Bounds(hang_s=10.0)) as (crew, gateway):
        await asyncio.wait_for(crew.start(), 60)
        (pid,) = pids_of(crew)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(3.5)  # it is asked after 2.5 s, and has 5 s to answer
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(1.0)
        assert is_alive(pid)
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: not is_alive(pid))
        restarts = gateway.metrics.registry.get_sample_value
        await eventually(lambda: restarts("outrider_worker_restarts_total", {"worker": "0"}) == 1)
        await eventually(lambda: restarts("outrider_worker_up", {"worker": "0"}) == 1)
        async with aiohttp.ClientSession() as session, session.get(f"{crew.url}/live") as response:
            assert response.status == 200


async def test_a_worker_that_hangs_when_all_are_to_stop_has_the_grace_of_all():
    """Though it has not answered just before; it ends by itself when it goes on."""
    async with crew_of(1, Bounds(hang_s=3.0, end_s=60.0)) as (crew, _):
        await asyncio.wait_for(crew.start(), 60)
        (pid,) = pids_of(crew)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(3.7)  # it is asked for the second time after 3 s, and has 1.5 s to answer
        crew.stop_soon()
        await asyncio.sleep(2.0)
        assert is_alive(pid)
        os.kill(pid, signal.SIGCONT)
        await asyncio.wait_for(crew.stop(), 60)
        assert not is_alive(pid)


async def test_a_worker_that_does_not_stop_is_killed():
    """After the grace of requests and what ending takes; none is left behind, and the others end by themselves."""
    async with crew_of(2, Bounds(end_s=3.0)) as (crew, _):
        await asyncio.wait_for(crew.start(), 90)
        pids = pids_of(crew)
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                await crew.stop()
        finally:
            with suppress(ProcessLookupError):
                os.kill(pids[0], signal.SIGCONT)
        assert not any(map(is_alive, pids))
