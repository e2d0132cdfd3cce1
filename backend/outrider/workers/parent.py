"""A gateway of several workers, from start to end, in the process that is their parent."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from dataclasses import dataclass

from outrider.app import Gateway, OnReady, looking_after
from outrider.config import Config, load_keys
from outrider.errors import ConfigError
from outrider.workers.address import reserved
from outrider.workers.crew import Crew
from outrider.workers.member import LaneNews, Setup
from outrider.workers.share import Share

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Workers:
    """How many, and what they log."""

    count: int
    verbose: bool = False
    access_log: bool = False


async def run(config: Config, workers: Workers, *, on_ready: OnReady | None = None) -> None:
    """Serve until SIGINT or SIGTERM; a second signal stops at once. SIGHUP has all read policies and keys again.

    `on_ready` runs beside the serving, with the parent's own gateway, which has the lanes. ConfigError when a limit
    is too small to be shared or the address is taken; SetupError when a worker cannot start.
    """
    if sys.platform != "linux":
        raise ConfigError("several workers need Linux, whose kernel shares out the connections of a port")
    smallest = Share(workers.count - 1, workers.count)
    smallest.of_config(config)
    smallest.of_keys(load_keys(config.auth))
    with reserved(config.server) as port:
        config = config.model_copy(update={"server": config.server.model_copy(update={"port": port})})
        async with looking_after(config) as gateway:
            news = {one.lane.name: LaneNews.of(one.lane) for one in gateway.supervisors}
            setup = Setup(
                index=0, count=workers.count, config=config, lanes=news, drained=frozenset(),
                verbose=workers.verbose, access_log=workers.access_log,
            )  # fmt: skip
            await _until_signal(Crew(gateway, setup), gateway, on_ready)


async def _until_signal(crew: Crew, gateway: Gateway, on_ready: OnReady | None) -> None:
    stop = asyncio.Event()
    reloads: set[asyncio.Task[None]] = set()

    def on_stop() -> None:
        if stop.is_set():
            gateway.stop_at_once()
            crew.stop_soon()
        stop.set()

    def on_reload() -> None:
        task = asyncio.create_task(_reload(crew))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_stop)
    loop.add_signal_handler(signal.SIGHUP, on_reload)
    serving = asyncio.create_task(_serve(crew, gateway, on_ready))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()  # it raises: serving has no other end
    finally:
        for task in (serving, stopped):
            task.cancel()
        await asyncio.gather(serving, stopped, return_exceptions=True)
        await crew.stop()


async def _reload(crew: Crew) -> None:
    for answer in await crew.every("reload", {}):
        if (problem := answer.get("problem")) is not None:
            logger.warning("reload: %s", problem)


async def _serve(crew: Crew, gateway: Gateway, on_ready: OnReady | None) -> None:
    await crew.start()
    gateway.url = crew.url
    beside = None if on_ready is None else asyncio.create_task(on_ready(gateway))
    try:
        await asyncio.Event().wait()
    finally:
        if beside is not None:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
