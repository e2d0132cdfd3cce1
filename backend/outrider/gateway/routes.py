"""The gateway's routes: each handler is a few steps, the work is elsewhere."""

from __future__ import annotations

import time
from typing import Any, get_args

import orjson
from aiohttp import web

from outrider.core import Hints
from outrider.dispatch.call import Call
from outrider.dispatch.dispatcher import Dispatcher
from outrider.errors import BodyTooLarge, UnsupportedMediaType
from outrider.gateway.attach import plan_headers
from outrider.gateway.boundary import ALWAYS_HEADERS, REQUEST_ID
from outrider.gateway.relay import relay_body, relay_stream
from outrider.gateway.schema import Route, parse_body
from outrider.runtimes.pool import Pool
from outrider.telemetry.metrics import CONTENT_TYPE, Metrics

#: Client headers that go on to the lane.
_FORWARDED = ("traceparent", "tracestate")


class Routes:
    """Handlers over the parts that the composition root made."""

    def __init__(
        self, dispatcher: Dispatcher, pool: Pool, metrics: Metrics, *, workloads: tuple[str, ...], max_body_bytes: int
    ) -> None:
        self._dispatcher = dispatcher
        self._pool = pool
        self._metrics = metrics
        self._workloads = workloads
        self._max_body_bytes = max_body_bytes

    def add_to(self, router: web.UrlDispatcher) -> None:
        for path in get_args(Route):
            router.add_post(path, self.generate)
        router.add_get("/v1/models", self.list_models)
        router.add_get("/v1/models/{id:.+}", self.get_model)
        router.add_get("/health", self.health)
        router.add_get("/ready", self.ready)
        router.add_get("/metrics", self.metrics)
        router.add_get("/outrider/lanes", self.list_lanes)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Chat and text completions: read and check, then run and relay."""
        call = await self._read_call(request)
        async with self._dispatcher.run(call) as run:
            request[ALWAYS_HEADERS] = plan_headers(run)
            return await relay_stream(request, run) if call.is_stream else await relay_body(run)

    async def _read_call(self, request: web.Request) -> Call:
        arrived_at_s = time.monotonic()
        if request.content_type != "application/json":
            given = request.headers.get("Content-Type", "none")
            raise UnsupportedMediaType(f"the content type must be application/json, not {given}")
        if (request.content_length or 0) > self._max_body_bytes:
            raise BodyTooLarge(f"the body has {request.content_length} bytes, the limit is {self._max_body_bytes}")
        raw = await request.read()
        path = request.path
        parsed = parse_body(_route(path), raw)
        fields = parsed.fields
        forwarded = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
        return Call(
            request_id=request[REQUEST_ID],
            path=path,
            raw=raw,
            body=parsed.body,
            hints=fields.outrider or Hints(),
            model=fields.model,
            is_stream=fields.stream is True,
            wants_stats=parsed.body.get("return_spec_tokens_details") is True,
            num_choices=fields.num_choices,
            arrived_at_s=arrived_at_s,
            headers=forwarded | {"x-request-id": request[REQUEST_ID]},
        )

    async def list_models(self, _request: web.Request) -> web.Response:
        """503 while no lane has ever been ready: models that are unknown are not none."""
        return _json({"object": "list", "data": [card.fields for card in self._pool.models()]})

    async def get_model(self, request: web.Request) -> web.Response:
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
            "workloads": self._workloads,
        }
        return _json(body, 200 if is_ready else 503)

    async def list_lanes(self, _request: web.Request) -> web.Response:
        """Every lane with its abilities, its load and where its profile is wrong."""
        return _json({"lanes": self._pool.describe()})

    async def metrics(self, _request: web.Request) -> web.Response:
        page = self._metrics.render({lane.name: lane.state for lane in self._pool.lanes})
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})


def _route(path: str) -> Route:
    return "/v1/chat/completions" if path == "/v1/chat/completions" else "/v1/completions"


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")
