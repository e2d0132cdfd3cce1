"""The gateway's routes: each handler is a few steps, the work is elsewhere."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from outrider.config import Config
from outrider.dispatch.call import Call
from outrider.dispatch.dispatcher import Dispatcher
from outrider.dispatch.retry import answered
from outrider.dispatch.run import Run
from outrider.errors import (
    BodyTooLarge,
    LaneUnavailable,
    RateLimited,
    ReloadRefused,
    RequestTimeout,
    UnsupportedMediaType,
)
from outrider.gateway.access import KEY
from outrider.gateway.attach import plan_headers
from outrider.gateway.background import Background
from outrider.gateway.boundary import ALWAYS_HEADERS, REQUEST_ID, Whole, json_response
from outrider.gateway.calls import Arrival, read_call
from outrider.gateway.jobs import Desk, Job
from outrider.gateway.openapi import document
from outrider.gateway.orders import Every
from outrider.gateway.relay import relay_stream
from outrider.gateway.runs import RunRoutes
from outrider.gateway.schema import ROUTES
from outrider.runtimes.pool import Pool
from outrider.telemetry.merge import merged
from outrider.telemetry.metrics import CONTENT_TYPE

_JSON = "application/json"


class Routes:
    """Handlers over the parts that the composition root made."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        pool: Pool,
        config: Config,
        *,
        every: Every,
        background: Background | None = None,
        worker: int | None = None,
    ) -> None:
        """`every` reaches all processes of the gateway, this one too; `worker` is its number when there are several.

        `background` is None where no runs are kept.
        """
        self._dispatcher = dispatcher
        self._pool = pool
        self._server = config.server
        self._limits = config.admission
        self._every = every
        self._desk = Desk(pool, None) if background is None else background.desk
        self._runs = RunRoutes(background, every)
        self._book = None if background is None else background.book
        self._worker = worker

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Put all routes in."""
        for path in ROUTES:
            router.add_post(path, self.generate)
        self._runs.add_to(router)
        router.add_get("/v1/models", self.list_models)
        router.add_get("/v1/models/{id:.+}", self.get_model)
        router.add_get("/health", self.health)
        router.add_get("/live", self.health)
        router.add_post("/outrider/reload", self.reload)
        router.add_get("/ready", self.ready)
        router.add_get("/metrics", self.metrics)
        router.add_get("/outrider/lanes", self.list_lanes)
        router.add_post("/outrider/lanes/{name}/drain", self.drain)
        router.add_post("/outrider/lanes/{name}/resume", self.resume)
        router.add_get("/openapi.json", self.openapi)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Every route that generates: read and check, then run and relay, or leave it to the runs."""
        call = await self._read_call(request)
        try:
            job = await self._desk.job(call)
            if job.is_background:
                return await self._runs.create(request, job)
            async with self._dispatcher.run(job.call) as run:
                return await answered(run, lambda: _attempt(request, job, run))
        except RateLimited:
            request[ALWAYS_HEADERS] = {} if call.key is None else call.key.headers()
            raise

    async def _read_call(self, request: web.Request) -> Call:
        arrival = Arrival(request.path, request.headers, request[REQUEST_ID], request.get(KEY), time.monotonic())
        if request.headers.get("Content-Type") != _JSON and request.content_type != _JSON:
            given = request.headers.get("Content-Type", "none")
            raise UnsupportedMediaType(f"the content type must be {_JSON}, not {given}")
        raw = await self._read_body(request)
        return read_call(arrival, raw, self._limits)

    async def _read_body(self, request: web.Request) -> bytes:
        limit, limit_s = self._server.max_body_bytes, self._server.body_timeout_s
        if (request.content_length or 0) > limit:
            raise BodyTooLarge(f"the body has {request.content_length} bytes, the limit is {limit}")
        if request.content.is_eof():
            body = request.content.read_nowait()
            if len(body) > limit:
                raise BodyTooLarge(f"the body has {len(body)} bytes, the limit is {limit}")
            return body
        try:
            async with asyncio.timeout(limit_s):
                return await request.read()
        except TimeoutError as error:
            raise RequestTimeout(f"the body did not arrive within {limit_s:g} s") from error

    async def reload(self, _request: web.Request) -> web.Response:
        """Policies and keys are read again; 422 when something is wrong, and nothing changes where that is found."""
        problem = await self._ordered("reload")
        if problem is not None:
            raise ReloadRefused(problem)
        return json_response({"policies": {"hash": self._dispatcher.files.digest}})

    async def list_models(self, _request: web.Request) -> web.Response:
        """Every model that some lane serves.

        503 while no lane has ever been ready: models that are unknown are not none.
        """
        return json_response({"object": "list", "data": [card.fields for card in self._pool.models()]})

    async def get_model(self, request: web.Request) -> web.Response:
        """One model."""
        return json_response(self._pool.card(request.match_info["id"]).fields)

    async def health(self, _request: web.Request) -> web.Response:
        """200 while the process lives."""
        return json_response({"status": "ok"})

    async def ready(self, _request: web.Request) -> web.Response:
        """200 when some lane takes requests, else 503. Open to everybody, so that reasons are not told here."""
        is_ready = self._pool.is_ready
        body = {
            "status": "ready" if is_ready else "not ready",
            "lanes": [{"name": lane.name, "state": lane.state.value} for lane in self._pool.lanes],
            "policies": {"hash": self._dispatcher.files.digest},
            "runs": "not kept" if self._book is None else self._book.state,
        }
        return json_response(body, 200 if is_ready else 503)

    async def list_lanes(self, _request: web.Request) -> web.Response:
        """Every lane with its abilities, its load and where its profile is wrong; the workloads and their files.

        With several workers, as the one that answers sees it, whose number is given.
        """
        files = self._dispatcher.files
        body = {
            "lanes": self._pool.describe(),
            "workloads": self._dispatcher.policies.workloads,
            "policies": {"hash": files.digest, "problem": files.problem},
            "worker": self._worker,
        }
        return json_response(body)

    async def drain(self, request: web.Request) -> web.Response:
        """The lane takes no new requests and ends those that it has; answers with the lane."""
        return await self._drained(request, is_draining=True)

    async def resume(self, request: web.Request) -> web.Response:
        """The lane takes requests again; answers with the lane."""
        return await self._drained(request, is_draining=False)

    async def _drained(self, request: web.Request, *, is_draining: bool) -> web.Response:
        lane = self._pool.named(request.match_info["name"])
        problem = await self._ordered("drain", lane=lane.name, is_draining=is_draining)
        if problem is not None:
            raise LaneUnavailable(f"not all of this gateway's processes have done so: {problem}")
        return json_response(lane.to_wire())

    async def _ordered(self, order: str, **given: object) -> str | None:
        """By every process; the first problem that one of them had."""
        answers = await self._every(order, given)
        return next((problem for one in answers if (problem := one.get("problem")) is not None), None)

    async def openapi(self, request: web.Request) -> web.Response:
        """What this gateway serves, as an OpenAPI document."""
        return json_response(document(request.app.router))

    async def metrics(self, _request: web.Request) -> web.Response:
        """What was counted and measured, in Prometheus' text format."""
        pages = [one["page"] for one in await self._every("page", {}) if "page" in one]
        page = pages[0] if len(pages) == 1 else merged(pages)
        return web.Response(body=page.encode(), headers={"Content-Type": CONTENT_TYPE})


async def _attempt(request: web.Request, job: Job, run: Run) -> web.StreamResponse:
    limits = {} if job.call.key is None else job.call.key.headers()
    request[ALWAYS_HEADERS] = plan_headers(run) | limits
    try:
        if job.call.is_stream:
            return await relay_stream(request, job.relay(run))
        body, headers = await job.body(run)
    finally:
        if run.hedged:  # perhaps on another lane now
            request[ALWAYS_HEADERS] = plan_headers(run) | limits
    whole = Whole(body, {"Content-Type": _JSON, **headers})
    whole.send(request)
    return whole
