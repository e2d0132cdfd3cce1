"""The routes of durable runs, and those of stored responses, which are runs too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from aiohttp import web

from outrider.errors import InvalidRequest, RouteNotFound, RunNotFound, StoreUnavailable
from outrider.gateway.access import KEY, seen_tenant
from outrider.gateway.background import Background, numbered, to_wire
from outrider.gateway.boundary import json_response
from outrider.gateway.jobs import Job
from outrider.gateway.orders import Every
from outrider.gateway.relay import STREAM_HEADERS
from outrider.gateway.translate.responses_answer import ResponsesAnswer
from outrider.gateway.translate.responses_request import input_items
from outrider.runs.book import RunBook
from outrider.runs.record import Record
from outrider.runtimes.dialects import RESPONSES

#: OpenAI has routes of these names below, which we have not: a 404, and not a response of that name.
_RESPONSE = "/v1/responses/{id:(?!(?:compact|input_tokens)$)[^{}/]+}"
_KEEP_ALIVE_S = 15.0
#: How long another process may take to end a run that is cancelled, and between two looks whether it has.
_END_S, _LOOK_S = 5.0, 0.05
MAX_NUMBER = 2**31 - 1
MAX_ITEMS = 100


class RunRoutes:
    """Every caller sees the runs of its tenant, an administrator all of them."""

    def __init__(self, background: Background | None, every: Every) -> None:
        self._background = background
        self._every = every

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Put the routes of runs in."""
        router.add_get("/outrider/runs", self.list_runs)
        router.add_get("/outrider/runs/{id}", self.get)
        router.add_get("/outrider/runs/{id}/events", self.events)
        router.add_post("/outrider/runs/{id}/cancel", self.cancel)
        router.add_delete("/outrider/runs/{id}", self.delete)
        router.add_get(_RESPONSE, self.get_response)
        router.add_get("/v1/responses/{id}/input_items", self.list_input)
        router.add_post("/v1/responses/{id}/cancel", self.cancel_response)
        router.add_delete(_RESPONSE, self.delete_response)

    async def create(self, request: web.Request, job: Job) -> web.StreamResponse:
        """202 with the run; in OpenAI's own way of asking, 200 with the response, or its events."""
        if self._background is None:
            param = "background" if job.is_background_response else "outrider.background"
            raise InvalidRequest(f"{param}: no store is configured (runs.url)", param=param)
        record = await self._background.book.create(job.record(), self._background.work(job))
        if not job.is_background_response:
            where = f"/outrider/runs/{record.id}"
            return json_response(to_wire(record), 202, {"Location": where})
        if job.client.is_stream:
            return await self._follow(request, record, 0)
        return json_response(_response(record))

    async def list_runs(self, request: web.Request) -> web.Response:
        """The caller's runs without their answers, stored responses among them; the newest first, behind `after`."""
        limit = _limit(request)
        after = None
        if (behind := request.query.get("after")) is not None:
            try:
                after = await self._book.get(behind, _tenant(request))
            except RunNotFound as error:
                raise InvalidRequest(f"after: there is no run {behind!r}", param="after") from error
        records = await self._book.newest(_tenant(request), limit + 1, after)
        page = [to_wire(record) for record in records[:limit]]
        return json_response({"object": "list", "data": page, "has_more": len(records) > limit})

    async def get(self, request: web.Request) -> web.Response:
        """The run, with its answer where that is one object."""
        record = await self._own(request)
        body = orjson.dumps({**to_wire(record), "answer": _parsed(record.answer)})
        return web.Response(body=body, content_type="application/json")

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Events behind `Last-Event-ID` as they come; 204 when there will be none, so that a browser stops asking."""
        record = await self._own(request)
        after = _number("last-event-id", request.headers.get("last-event-id"), 0)
        if after > record.num_events:
            raise InvalidRequest(f"last-event-id: the run has {record.num_events} events", param="last-event-id")
        if record.is_over and after == record.num_events:
            return web.Response(status=204)
        return await self._follow(request, record, after)

    async def cancel(self, request: web.Request) -> web.Response:
        """The run, as it is then; one that has ended stays as it is."""
        return json_response(to_wire(await self._cancelled(request)))

    async def delete(self, request: web.Request) -> web.Response:
        """The run is forgotten, and cancelled when it has not ended."""
        record = await self._own(request)
        await self._forget(request)
        return json_response({"id": record.id, "object": "outrider.run", "deleted": True})

    async def get_response(self, request: web.Request) -> web.StreamResponse:
        """The response as it is now; with `stream=true` its events behind `starting_after`."""
        record = await self._own_response(request)
        after = _number("starting_after", request.query.get("starting_after"), -1) + 1
        stream = request.query.get("stream", "false")
        if stream not in ("true", "false"):
            raise InvalidRequest("stream: expected true or false", param="stream")
        if stream == "false":
            return json_response(_response(record))
        if record.is_over and not record.num_events:
            raise InvalidRequest("stream: events are kept of background responses only", param="stream")
        if record.is_over and after >= record.num_events:
            return web.Response(status=204)
        return await self._follow(request, record, after)

    async def cancel_response(self, request: web.Request) -> web.Response:
        """The response, as it is then."""
        await self._own_response(request)
        return json_response(_response(await self._cancelled(request)))

    async def delete_response(self, request: web.Request) -> web.Response:
        """The response is forgotten, and cancelled when it has not ended."""
        record = await self._own_response(request)
        await self._forget(request)
        return json_response({"id": record.id, "object": "response", "deleted": True})

    async def list_input(self, request: web.Request) -> web.Response:
        """The items of the response's own input, by `order` and after the item `after`."""
        record = await self._own_response(request)
        items = _items(record)
        order = request.query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("order: expected asc or desc", param="order")
        if order == "desc":
            items.reverse()
        limit = _limit(request)
        if (after := request.query.get("after")) is not None:
            ids = [item["id"] for item in items]
            if after not in ids:
                raise InvalidRequest(f"after: there is no item {after!r}", param="after")
            items = items[ids.index(after) + 1 :]
        page = items[:limit]
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
        return json_response({"object": "list", "data": page, **ends, "has_more": len(items) > limit})

    @property
    def _book(self) -> RunBook:
        if self._background is None:
            raise RouteNotFound("no runs are kept: no store is configured (runs.url)")
        return self._background.book

    async def _own(self, request: web.Request) -> Record:
        """RunNotFound for those of others too."""
        return await self._book.get(request.match_info["id"], _tenant(request))

    async def _own_response(self, request: web.Request) -> Record:
        try:
            record = await self._own(request)
        except RunNotFound:
            record = None
        if record is None or record.path != RESPONSES:
            raise RunNotFound(f"there is no response {request.match_info['id']}")
        return record

    async def _cancelled(self, request: web.Request) -> Record:
        """The run once it has ended; another process that has it is given a while."""
        record = await self._own(request)
        if record.is_over:
            return record
        await self._book.cancel(record)
        found = await self._own(request)
        if not found.is_over:
            await self._every("look", {})
        ends_at_s = time.monotonic() + _END_S
        while not found.is_over and time.monotonic() < ends_at_s:
            await asyncio.sleep(_LOOK_S)
            found = await self._own(request)
        return found

    async def _forget(self, request: web.Request) -> None:
        """Its work is ended first: without its row another process would not hear of the end."""
        await self._book.delete(await self._cancelled(request))

    async def _follow(self, request: web.Request, record: Record, after: int) -> web.StreamResponse:
        """Comments keep the connection alive while nothing comes; a store that fails breaks it."""
        response = web.StreamResponse(headers=STREAM_HEADERS)
        try:
            async with aclosing(self._book.follow(record.id, after)) as batches:
                await _write(request, response, batches)
        except StoreUnavailable:
            if not response.prepared:
                raise
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
        return response


async def _write(
    request: web.Request, response: web.StreamResponse, batches: AsyncGenerator[list[tuple[int, bytes]]]
) -> None:
    written_s = time.monotonic()
    async for events in batches:
        if not response.prepared:
            await response.prepare(request)
        is_quiet = time.monotonic() - written_s > _KEEP_ALIVE_S
        if data := numbered(events) or (b":\n\n" if is_quiet else b""):
            await response.write(data)
            written_s = time.monotonic()
    if not response.prepared:
        await response.prepare(request)


def _tenant(request: web.Request) -> str | None:
    return seen_tenant(request.get(KEY))


def _limit(request: web.Request) -> int:
    limit = _number("limit", request.query.get("limit"), 20)
    if not 1 <= limit <= MAX_ITEMS:
        raise InvalidRequest(f"limit: expected 1 to {MAX_ITEMS}", param="limit")
    return limit


def _response(record: Record) -> Any:
    """The response object of a run."""
    if record.answer is not None:
        return orjson.loads(record.answer)
    answer = ResponsesAnswer(record.id, orjson.loads(record.body), None, record.created_at)
    return answer.snapshot(record.status, is_stored=True, error=record.error)


def _items(record: Record) -> list[dict[str, Any]]:
    """Of the input, in the shape in which OpenAI lists it: with ids, texts as parts."""
    items = []
    for i, item in enumerate(input_items(orjson.loads(record.body))):
        kind = item.get("type", "message")
        listed: dict[str, Any] = {"id": f"{kind}_{record.id.removeprefix('resp_')}_{i}", **item, "type": kind}
        content = item.get("content")
        if kind == "message" and isinstance(content, str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            listed["content"] = [{"type": part, "text": content}]
        items.append(listed)
    return items


def _parsed(answer: bytes | None) -> Any:
    return None if answer is None else orjson.loads(answer)


def _number(name: str, given: str | None, default: int) -> int:
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and int(given[:20]) <= MAX_NUMBER):
        raise InvalidRequest(f"{name}: expected a number", param=name)
    return int(given)
