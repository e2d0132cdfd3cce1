"""Composition root of the gateway: makes every part, starts and stops them. The only file that knows them all."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from outrider.config import (
    Config,
    LaneSection,
    SGLangSection,
    TracingSection,
    UrlSection,
    cache_dir,
    inherited_environment,
    load_keys,
    policy_folders,
)
from outrider.core import Outcome
from outrider.dispatch.admission import Admissions
from outrider.dispatch.call import Call
from outrider.dispatch.dispatcher import Dispatcher
from outrider.dispatch.keys import KeyRing
from outrider.dispatch.learning import LearningStore, kept, learning_key
from outrider.errors import ConfigError, SetupError
from outrider.gateway.access import guard
from outrider.gateway.background import Background, opened
from outrider.gateway.boundary import add_headers, boundary, refusing
from outrider.gateway.listening import Runner, listen
from outrider.gateway.orders import Orders
from outrider.gateway.routes import Routes
from outrider.policy.loader import Source
from outrider.policy.reload import PolicyFiles
from outrider.runtimes.client import LaneClient
from outrider.runtimes.lane import Lane
from outrider.runtimes.launch import engine_launch, local_launch
from outrider.runtimes.load import LaneWatch, log_failure
from outrider.runtimes.pool import Pool
from outrider.runtimes.process import Log
from outrider.runtimes.roll import Roll
from outrider.runtimes.supervisor import Supervisor
from outrider.telemetry.lag import lag_measured
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import Tracing, tracing_to
from outrider.workers.member import Member, launched
from outrider.workers.share import ALONE, Share

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Gateway:
    """The parts of one gateway, and where it listens once it does."""

    pool: Pool
    admission: Admissions
    dispatcher: Dispatcher
    client: LaneClient
    metrics: Metrics
    supervisors: tuple[Supervisor, ...]
    keys: KeyRing
    config: Config
    rolls: tuple[Roll, ...] = ()
    runs: Background | None = None
    share: Share = ALONE
    url: str = ""
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: do not wait for running requests on shutdown."""

    @property
    def orders(self) -> Orders:
        """Orders for lanes, which the administrator's routes give."""
        look = (lambda: None) if self.runs is None else self.runs.book.look_now.set
        return Orders(self.pool, self.metrics, self.reload, look)

    def reload(self) -> str | None:
        """Read policies and keys again. What is wrong is returned and nothing changes: the last good ones stay."""
        try:
            sections = self.share.of_keys(load_keys(self.config.auth))
        except SetupError as error:
            return self._refused(error.message)
        files = self.dispatcher.files
        if not files.reload():
            return self._refused(files.problem)
        self.keys.replace(sections, time.monotonic())
        self.metrics.reloaded(True)
        return None

    def _refused(self, problem: str | None) -> str | None:
        logger.warning("reload refused: %s", problem)
        self.metrics.reloaded(False)
        return problem

    def stop_at_once(self) -> None:
        """End running requests and lanes without grace."""
        self.hurry.set()
        for supervisor in self.supervisors:
            supervisor.kill()


GATEWAY = web.AppKey("gateway", Gateway)
OnReady = Callable[[Gateway], Coroutine[None, None, None]]


def build(
    config: Config,
    lanes: Sequence[Lane] | None = None,
    on_outcome: Callable[[Call, Outcome], None] | None = None,
    member: Member | None = None,
) -> web.Application:
    """Make and connect all parts; nothing runs yet. `lanes` replace the configured ones and are not supervised.

    A `member` of several workers has its share of the limits, and lanes that its parent launches.
    """
    share, worker = (ALONE, None) if member is None else (member.share, member.share.index)
    metrics = Metrics(worker)
    client = LaneClient(metrics)
    own = launched(config) if lanes is None and member is None else ()
    supervisors = tuple(_supervisor(one, metrics) for one in own)
    pool = Pool([one.lane for one in supervisors] if lanes is None else lanes)
    if member is not None:
        pool = Pool(member.lanes, member.drained)
    rolls = tuple(Roll(one, pool, client) for one in config.lanes if lanes is None and isinstance(one, UrlSection))
    config = share.of_config(config)
    admission = Admissions(config.admission)
    store = None if config.policy.learning is None else LearningStore(config.policy.learning, share.index)
    learner = None if store is None else store.load(learning_key(config))
    folders = policy_folders(config.policy.directories)
    files = PolicyFiles(Source(folders, config.policy.default, env=inherited_environment()), learner)
    dispatcher = Dispatcher(admission, pool, client, files, metrics, on_outcome)
    dispatcher.store, dispatcher.tracing = store, _tracing(config.tracing)
    sections = share.of_keys(load_keys(config.auth))
    keys = KeyRing(sections, time.monotonic(), may_change=config.auth.keys_file is not None)
    runs = opened(config, dispatcher, pool, keys, is_shared=member is not None)
    gateway = Gateway(pool, admission, dispatcher, client, metrics, supervisors, keys, config, rolls, runs, share)
    metrics.watch(num_in_flight=lambda: admission.num_in_flight, num_queued=lambda: admission.num_queued)
    app = web.Application(middlewares=[boundary(metrics), guard(keys)], client_max_size=config.server.max_body_bytes)
    every = gateway.orders.here if member is None else member.every
    Routes(dispatcher, pool, config, every=every, background=runs, worker=worker).add_to(app.router)
    app[GATEWAY] = gateway
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.extend([_traced, _client_open, _lanes_running, lambda _: lag_measured(metrics)])
    if runs is not None:
        runs.shown_in(metrics)
        app.cleanup_ctx.append(runs.running)
    if store is not None:
        app.cleanup_ctx.append(lambda _: kept(store, files.learner, learning_key(config)))
    return app


def _tracing(section: TracingSection) -> Tracing | None:
    if section.endpoint is None:
        return None
    try:
        return tracing_to(section.endpoint, section.sampled)
    except ImportError as error:
        raise ConfigError("tracing.endpoint needs the packages of outrider[tracing]") from error


def _supervisor(section: LaneSection | SGLangSection, metrics: Metrics) -> Supervisor:
    """Of the process that a profile describes."""
    if isinstance(section, LaneSection):
        lane, launch, log = Lane(section.name), partial(engine_launch, section), Log()
    else:
        lane = Lane(section.name, profile=section)
        launch = partial(local_launch, section, locate=located, inherited=inherited_environment())
        log = Log(cache_dir() / "logs" / f"{section.name}.log")
    return Supervisor(lane, launch, metrics, ready_timeout_s=section.ready_timeout_s, log=log)


def located(model: str) -> str:
    """The folder of a pulled model; any other name as it is, for SGLang to find."""
    from outrider.engine.pull import CATALOG, locate

    return str(locate(model, cache_dir())) if model in CATALOG else model


@asynccontextmanager
async def looking_after(config: Config, *, has_processes: bool = True) -> AsyncIterator[Gateway]:
    """The lanes of a configuration for the block, without HTTP edge and runs; those we launch only when asked."""
    lanes = config.lanes if has_processes else tuple(one for one in config.lanes if isinstance(one, UrlSection))
    if not lanes:
        raise ConfigError("the configuration has no lane of the kind url")
    # Nothing is learnt or kept here, so that what a gateway has learnt must not be replaced by it.
    policy = config.policy.model_copy(update={"learning": None})
    app = build(config.model_copy(update={"lanes": lanes, "policy": policy, "runs": Config().runs}))
    app.freeze()
    try:
        await app.startup()
        yield app[GATEWAY]
    finally:
        await app.cleanup()


async def _client_open(app: web.Application) -> AsyncIterator[None]:
    async with app[GATEWAY].client:
        yield


async def _lanes_running(app: web.Application) -> AsyncIterator[None]:
    gateway = app[GATEWAY]
    jobs: list[Coroutine[None, None, None]] = [supervisor.run() for supervisor in gateway.supervisors]
    jobs += [roll.run() for roll in gateway.rolls]
    jobs += [LaneWatch(lane, gateway.client).run() for lane in gateway.pool.lanes]
    tasks = [asyncio.create_task(job) for job in jobs]
    for task in tasks:
        task.add_done_callback(log_failure)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _traced(app: web.Application) -> AsyncIterator[None]:
    yield
    if (tracing := app[GATEWAY].dispatcher.tracing) is not None:
        await tracing.close()


@asynccontextmanager
async def serving(
    config: Config | None = None,
    *,
    lanes: Sequence[Lane] | None = None,
    on_outcome: Callable[[Call, Outcome], None] | None = None,
    member: Member | None = None,
) -> AsyncIterator[Gateway]:
    """A listening gateway for the block, through the runner that `run` uses too.

    ConfigError when the address cannot be listened on, PolicyError when a policy is wrong.
    """
    config = config or Config()
    app = build(config, lanes, on_outcome, member)
    runner = Runner(app, config.server, refusing(app[GATEWAY].metrics))
    await runner.setup()
    try:
        app[GATEWAY].url = await listen(runner, config.server, shares_port=member is not None)
        yield app[GATEWAY]
    finally:
        await _shut_down(runner, app[GATEWAY], config.server.shutdown_grace_s)


async def _shut_down(runner: web.AppRunner, gateway: Gateway, grace_s: float) -> None:
    # 1. Stop accepting connections, requests on idle ones, and runs.
    for site in list(runner.sites):
        await site.stop()
    if runner.server is not None:
        runner.server.pre_shutdown()
    if gateway.runs is not None:
        gateway.runs.book.rest()
    # 2. Let running requests finish.
    ends = [asyncio.create_task(gateway.dispatcher.wait_until_idle()), asyncio.create_task(gateway.hurry.wait())]
    await asyncio.wait(ends, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    for task in ends:
        task.cancel()
    if gateway.dispatcher.num_open:
        logger.warning("%d requests are cancelled by the shutdown", gateway.dispatcher.num_open)
    # 3. Cancel the others; the connections end, then the lanes and the client.
    await runner.cleanup()


async def run(config: Config, *, on_ready: OnReady | None = None, member: Member | None = None) -> None:
    """Serve until SIGINT or SIGTERM; a second signal stops at once.

    `on_ready` runs beside the serving from the moment that the gateway listens, and is cancelled with it.
    """
    stop = asyncio.Event()
    async with serving(config, member=member) as gateway:

        def on_signal() -> None:
            if stop.is_set():
                gateway.stop_at_once()
            stop.set()

        gc.freeze()  # what is there from the start stays, and need not be looked at again
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal)
        loop.add_signal_handler(signal.SIGHUP, gateway.reload)
        beside = None if on_ready is None else asyncio.create_task(on_ready(gateway))
        await stop.wait()
        if beside is not None:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
