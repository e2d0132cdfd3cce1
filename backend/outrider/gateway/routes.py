"""The gateway's routes: each handler is a few steps, the work is elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from outrider.config import Config
from outrider.core import Hints
from outrider.dispatch.call import Call
from outrider.dispatch.dispatcher import Dispatcher
from outrider.errors import BodyTooLarge, RateLimited, RequestTimeout, UnsupportedMediaType
from outrider.gateway.access import KEY, claim_of, refuse_internal
from outrider.gateway.attach import plan_headers
from outrider.gateway.boundary import ALWAYS_HEADERS, REQUEST_ID
from outrider.gateway.openapi import document
from outrider.gateway.relay import relay_body, relay_stream
from outrider.gateway.schema import ROUTES, parse_body
from outrider.runtimes.pool import Pool
from outrider.telemetry.metrics import CONTENT_TYPE, Metrics

#: Client headers that go on to the lane.
_FORWARDED = ("traceparent", "tracestate")


class Routes:
    """Handlers over the parts that the composition root made."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        pool: Pool,
        metrics: Metrics,
        *,
        config: Config,
        reload: Callable[[], str | None],
    ) -> None:
        """`reload` reads policies and keys again and says what is wrong with them, None when nothing is."""
        self._dispatcher = dispatcher
        self._pool = pool
        self._metrics = metrics
        self._server = config.server
        self._limits = config.admission
        self._reload = reload

    def add_to(self, router: web.UrlDispatcher) -> None:
        for path in ROUTES:
            router.add_post(path, self.generate)
        router.add_get("/v1/models", self.list_models)
        router.add_get("/v1/models/{id:.+}", self.get_model)
        router.add_get("/health", self.health)
        router.add_get("/live", self.health)
        router.add_post("/outrider/reload", self.reload)
        router.add_get("/ready", self.ready)
        router.add_get("/metrics", self.metrics)
        router.add_get("/outrider/lanes", self.list_lanes)
        router.add_get("/openapi.json", self.openapi)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Every route that generates: read and check, then run and relay."""
        call = await self._read_call(request)
        try:
            return await self._relay(request, call)
        except RateLimited:
            request[ALWAYS_HEADERS] = {} if call.key is None else call.key.headers()
            raise

    async def _relay(self, request: web.Request, call: Call) -> web.StreamResponse:
        async with self._dispatcher.run(call) as run:
            limits = {} if call.key is None else call.key.headers()
            request[ALWAYS_HEADERS] = plan_headers(run) | limits
            return await relay_stream(request, run) if call.is_stream else await relay_body(run)

    async def _read_call(self, request: web.Request) -> Call:
        arrived_at_s = time.monotonic()
        if request.content_type != "application/json":
            given = request.headers.get("Content-Type", "none")
            raise UnsupportedMediaType(f"the content type must be application/json, not {given}")
        raw = await self._read_body(request)
        path = request.path
        parsed = parse_body(path, raw)
        fields, key = parsed.fields, request.get(KEY)
        refuse_internal(parsed.body, key)
        forwarded = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
        return Call(
            request_id=request[REQUEST_ID],
            path=path,
            raw=raw,
            body=fields.for_policy(parsed.body),
            hints=fields.outrider or Hints(),
            model=fields.model,
            is_stream=fields.stream is True,
            wants_stats=parsed.body.get("return_spec_tokens_details") is True,
            num_choices=fields.num_choices,
            arrived_at_s=arrived_at_s,
            headers=forwarded | {"x-request-id": request[REQUEST_ID]},
            client_headers=request.headers,
            claim=claim_of(request.headers, key, self._limits),
            key=key,
        )

    async def _read_body(self, request: web.Request) -> bytes:
        limit, limit_s = self._server.max_body_bytes, self._server.body_timeout_s
        if (request.content_length or 0) > limit:
            raise BodyTooLarge(f"the body has {request.content_length} bytes, the limit is {limit}")
        try:
            async with asyncio.timeout(limit_s):
                return await request.read()
        except TimeoutError as error:
            raise RequestTimeout(f"the body did not arrive within {limit_s:g} s") from error

    async def reload(self, _request: web.Request) -> web.Response:
        """Policies and keys are read again; 422 when something is wrong, and then nothing changes."""
        problem = self._reload()
        return _json({"problem": problem}, 200 if problem is None else 422)

    async def list_models(self, _request: web.Request) -> web.Response:
        """Every model that some lane serves.

        503 while no lane has ever been ready: models that are unknown are not none.
        """
        return _json({"object": "list", "data": [card.fields for card in self._pool.models()]})

    async def get_model(self, request: web.Request) -> web.Response:
        """One model."""
        return _json(self._pool.card(request.match_info["id"]).fields)

    async def health(self, _request: web.Request) -> web.Response:
        """200 while the process lives."""
        return _json({"status": "ok"})

    async def ready(self, _request: web.Request) -> web.Response:
        """200 when some lane takes requests, else 503 with the reasons."""
        lanes = [
            {
                "name": lane.name,
                "state": lane.state.value,
                "reason": lane.reason,
                "models": [card.id for card in lane.models],
                "num_in_flight": lane.num_in_flight,
            }
            for lane in self._pool.lanes
        ]
        is_ready = self._pool.is_ready
        body = {
            "status": "ready" if is_ready else "not ready",
            "reasons": [f"lane {lane.name}: {lane.reason}" for lane in self._pool.lanes if lane.reason],
            "lanes": lanes,
            "workloads": self._dispatcher.policies.workloads,
            "policies": {"hash": self._dispatcher.files.digest, "problem": self._dispatcher.files.problem},
        }
        return _json(body, 200 if is_ready else 503)

    async def list_lanes(self, _request: web.Request) -> web.Response:
        """Every lane with its abilities, its load and where its profile is wrong."""
        return _json({"lanes": self._pool.describe()})

    async def openapi(self, request: web.Request) -> web.Response:
        """What this gateway serves, as an OpenAPI document."""
        return _json(document(request.app.router))

    async def metrics(self, _request: web.Request) -> web.Response:
        """What was counted and measured, in Prometheus' text format."""
        page = self._metrics.render({lane.name: lane.state for lane in self._pool.lanes})
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")
