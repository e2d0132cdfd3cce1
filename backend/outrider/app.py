"""Composition root of the gateway: makes every part, starts and stops them. The only file that knows them all."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from outrider.config import Config, ServerSection, environment, packaged_data
from outrider.core import Outcome
from outrider.dispatch.admission import Admission
from outrider.dispatch.call import Call
from outrider.dispatch.dispatcher import Dispatcher
from outrider.dispatch.learning import LearningStore
from outrider.errors import ConfigError
from outrider.gateway.boundary import add_headers, boundary
from outrider.gateway.routes import Routes
from outrider.policy.loader import Source, load_policies
from outrider.runtimes.client import LaneClient
from outrider.runtimes.lane import Lane
from outrider.runtimes.load import LaneWatch
from outrider.runtimes.pool import Pool
from outrider.runtimes.supervisor import Supervisor, engine_command
from outrider.telemetry.metrics import Metrics
from outrider.version import __version__

logger = logging.getLogger(__name__)

#: Cancelled handlers get this long to unwind.
_UNWIND_S = 0.25
#: Seconds between two writes of what was learnt.
_SAVE_INTERVAL_S = 60.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Gateway:
    """The parts of one gateway, and where it listens once it does."""

    pool: Pool
    admission: Admission
    dispatcher: Dispatcher
    client: LaneClient
    metrics: Metrics
    supervisors: tuple[Supervisor, ...]
    url: str = ""
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: do not wait for running requests on shutdown."""

    def stop_at_once(self) -> None:
        """End running requests and lanes without grace."""
        self.hurry.set()
        for supervisor in self.supervisors:
            supervisor.kill()


GATEWAY = web.AppKey("gateway", Gateway)


def build(
    config: Config,
    lanes: Sequence[Lane] | None = None,
    on_outcome: Callable[[Call, Outcome], None] | None = None,
) -> web.Application:
    """Make and connect all parts; nothing runs yet. `lanes` replace the configured ones and are not supervised."""
    metrics = Metrics()
    client = LaneClient(metrics)
    supervisors = () if lanes is not None else tuple(_supervise(config, metrics))
    pool = Pool(lanes if lanes is not None else [supervisor.lane for supervisor in supervisors])
    admission = Admission(config.admission)
    directory = config.policy.directory or packaged_data("policies")
    store = None if config.policy.learning is None else LearningStore(config.policy.learning)
    learner = None if store is None else store.load(_learning_key(config))
    policies = load_policies(Source([directory], config.policy.default, env=environment()), learner)
    dispatcher = Dispatcher(admission, pool, client, policies, metrics, on_outcome)
    dispatcher.store = store
    metrics.watch(num_in_flight=lambda: admission.num_in_flight, num_queued=lambda: admission.num_queued)
    limit = config.server.max_body_bytes
    app = web.Application(middlewares=[boundary(metrics)], client_max_size=limit)
    Routes(dispatcher, pool, metrics, workloads=policies.workloads, max_body_bytes=limit).add_to(app.router)
    app[GATEWAY] = Gateway(pool, admission, dispatcher, client, metrics, supervisors)
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.extend([_client_open, _lanes_running])
    if store is not None:
        app.cleanup_ctx.append(partial(_learning_kept, store, _learning_key(config)))
    return app


def _learning_key(config: Config) -> dict[str, str]:
    """What is learnt holds for these lanes and this build, and is begun anew on others."""
    return {"build": __version__, "lanes": str(config.lanes)}


async def _learning_kept(store: LearningStore, key: Mapping[str, str], app: web.Application) -> AsyncIterator[None]:
    """Save now and then, and at the end."""
    dispatcher = app[GATEWAY].dispatcher

    async def save_regularly() -> None:
        while True:
            await asyncio.sleep(_SAVE_INTERVAL_S)
            store.save(dispatcher.policies.learner, key)

    task = asyncio.create_task(save_regularly())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    store.save(dispatcher.policies.learner, key)
    store.close()


def _supervise(config: Config, metrics: Metrics) -> list[Supervisor]:
    return [
        Supervisor(
            Lane(section.name),
            partial(engine_command, section),
            metrics,
            ready_timeout_s=section.ready_timeout_s,
        )
        for section in config.lanes
    ]


async def _client_open(app: web.Application) -> AsyncIterator[None]:
    async with app[GATEWAY].client:
        yield


async def _lanes_running(app: web.Application) -> AsyncIterator[None]:
    gateway = app[GATEWAY]
    jobs = [supervisor.run() for supervisor in gateway.supervisors]
    jobs += [LaneWatch(lane, gateway.client).run() for lane in gateway.pool.lanes]
    tasks = [asyncio.create_task(job) for job in jobs]
    for task in tasks:
        task.add_done_callback(_log_failure)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a lane is not looked after any more", exc_info=error)


@asynccontextmanager
async def serving(
    config: Config | None = None,
    *,
    lanes: Sequence[Lane] | None = None,
    on_outcome: Callable[[Call, Outcome], None] | None = None,
) -> AsyncIterator[Gateway]:
    """A listening gateway for the block, through the runner that `run` uses too.

    ConfigError when the address cannot be listened on, PolicyError when a policy is wrong.
    """
    config = config or Config()
    app = build(config, lanes, on_outcome)
    # Without handler_cancellation a client that leaves would not be noticed before the next write.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_UNWIND_S)
    await runner.setup()
    try:
        await _listen(runner, config.server)
        gateway = app[GATEWAY]
        host, port = runner.addresses[0][:2]
        gateway.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        yield gateway
    finally:
        await _shut_down(runner, app[GATEWAY], config.server.shutdown_grace_s)


async def _listen(runner: web.AppRunner, server: ServerSection) -> None:
    try:
        await web.TCPSite(runner, server.host, server.port).start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {server.host}:{server.port}: {error.strerror}") from error


async def _shut_down(runner: web.AppRunner, gateway: Gateway, grace_s: float) -> None:
    # 1. Stop accepting connections, and requests on idle ones.
    for site in list(runner.sites):
        await site.stop()
    if runner.server is not None:
        runner.server.pre_shutdown()
    # 2. Let running requests finish.
    ends = [asyncio.create_task(gateway.dispatcher.wait_until_idle()), asyncio.create_task(gateway.hurry.wait())]
    await asyncio.wait(ends, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    for task in ends:
        task.cancel()
    # 3. Cancel the others, and say how many.
    if gateway.dispatcher.num_open:
        logger.warning("%d requests are cancelled by the shutdown", gateway.dispatcher.num_open)
    # 4. The runner ends the connections, then the lanes and the client, in the reverse order of their start.
    await runner.cleanup()


async def run(config: Config, *, on_ready: Callable[[Gateway], Coroutine[None, None, None]] | None = None) -> None:
    """Serve until SIGINT or SIGTERM; a second signal stops at once.

    `on_ready` runs beside the serving from the moment that the gateway listens, and is cancelled with it.
    """
    stop = asyncio.Event()
    async with serving(config) as gateway:

        def on_signal() -> None:
            if stop.is_set():
                gateway.stop_at_once()
            stop.set()

        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal)
        beside = None if on_ready is None else asyncio.create_task(on_ready(gateway))
        await stop.wait()
        if beside is not None:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
