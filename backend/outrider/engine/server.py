"""The engine as an HTTP server that speaks SGLang's protocol. The only part of the engine that knows HTTP."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
from aiohttp import web

from outrider.engine import generate_replies, info, replies
from outrider.engine.bodies import MAX_CHOICES
from outrider.engine.choices import Choices, choice_id, generating, raise_if_aborted
from outrider.engine.engine import Engine
from outrider.engine.info import ServerOptions
from outrider.engine.loop import EngineLoop
from outrider.engine.metrics import EngineMetrics
from outrider.engine.profile import read_table
from outrider.engine.protocol import (
    DEADLINE_HEADER,
    Parsed,
    parse_chat,
    parse_completion,
    parse_deadline,
    parse_generate,
)
from outrider.engine.sequence import Finish
from outrider.errors import APIError, ConfigError, InvalidRequest

Parse = Callable[[object, Engine], Parsed]


class EngineServer:
    """Routes over one engine loop."""

    def __init__(self, loop: EngineLoop, metrics: EngineMetrics, options: ServerOptions) -> None:
        self._loop = loop
        self._engine = loop.engine
        self._metrics = metrics
        self._options = options

    def app(self) -> web.Application:
        """A new application with all routes."""
        # Image-sized bodies never come here; a long prompt of 8k tokens is some 40 KB.
        app = web.Application(client_max_size=16 * 1024 * 1024, middlewares=[_errors_as_bodies])
        app.router.add_get("/health", self._ready)
        app.router.add_get("/health_generate", self._ready)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_get("/metrics", self._prometheus)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/v1/chat/completions", self._openai(parse_chat, replies.CHAT))
        app.router.add_post("/v1/completions", self._openai(parse_completion, replies.COMPLETION))
        return app

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self._loop.is_alive else 503)

    async def _models(self, request: web.Request) -> web.Response:
        return _json(info.models(self._engine, self._options))

    async def _server_info(self, request: web.Request) -> web.Response:
        return _json(info.server_info(self._engine, self._options))

    async def _loads(self, request: web.Request) -> web.Response:
        return _json(info.loads(self._loop.load, self._options.limits))

    async def _prometheus(self, request: web.Request) -> web.Response:
        body = self._metrics.render(self._loop.load)
        return web.Response(body=body, headers={"Content-Type": self._metrics.content_type})

    async def _abort(self, request: web.Request) -> web.Response:
        """Always 200. Ids match exactly: SGLang's prefix match would end other people's requests."""
        data = await _body(request)
        rid = data.get("rid") if isinstance(data, dict) else None
        finish = Finish("abort", message="the request was aborted", status=499)
        if isinstance(data, dict) and data.get("abort_all") is True:
            self._loop.abort_all(finish)
        elif isinstance(rid, str) and rid:
            for index in range(MAX_CHOICES):
                self._loop.abort(choice_id(rid, index), finish)
        return web.Response()

    async def _parsed(self, request: web.Request, parse: Parse) -> Parsed:
        """In a thread of its own: a grammar may take a second to compile, for which no stream may wait."""
        deadline_s = parse_deadline(request.headers.get(DEADLINE_HEADER), time.monotonic())
        parsed = await asyncio.to_thread(parse, await _body(request), self._engine)
        return replace(parsed, request=replace(parsed.request, deadline_s=deadline_s))

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        parsed = await self._parsed(request, parse_generate)
        answers = replies.answers_of(parsed, self._options.served_model_name)
        async with generating(self._loop, parsed.request, parsed.num_choices) as choices:
            if not parsed.is_stream:
                await _complete(choices, answers)
                bodies = [generate_replies.generate_body(answer) for answer in answers]
                return _json(bodies if parsed.num_choices > 1 else bodies[0], parsed)
            response = await _event_stream(request, parsed)
            while replies.are_unfinished(answers):
                events = b""
                for index, output in await choices.next():
                    answers[index].add(output)
                    events += generate_replies.generate_event(answers[index])
                await response.write(events)
            await response.write(replies.DONE)
            return response

    def _openai(self, parse: Parse, shape: replies.Shape) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            parsed = await self._parsed(request, parse)
            answers = replies.answers_of(parsed, self._options.served_model_name)
            async with generating(self._loop, parsed.request, parsed.num_choices) as choices:
                if parsed.is_stream:
                    return await _stream_openai(request, choices, answers, shape)
                await _complete(choices, answers)
                return _json(replies.whole_body(answers, shape), parsed)

        return handle


async def _stream_openai(
    request: web.Request, choices: Choices, answers: list[replies.Answer], shape: replies.Shape
) -> web.StreamResponse:
    """One write per look; the head waits for the first step, so that an early failure is a real status."""
    outputs = await choices.next()
    raise_if_aborted(outputs)
    response = await _event_stream(request, answers[0].parsed)
    is_open = [False] * len(answers)
    while True:
        events = b""
        for index, output in outputs:
            answer = answers[index]
            events += b"" if is_open[index] else replies.opening_events(answer, shape)
            is_open[index] = True
            answer.add(output)
            events += replies.delta_events(answer, shape, output)
            if answer.finish is not None:
                events += replies.finish_event(answer, shape)
        if not replies.are_unfinished(answers):
            await response.write(events + replies.closing_events(answers, shape))
            return response
        if events:
            await response.write(events)
        outputs = await choices.next()


async def _complete(choices: Choices, answers: list[replies.Answer]) -> None:
    while replies.are_unfinished(answers):
        outputs = await choices.next()
        raise_if_aborted(outputs)
        for index, output in outputs:
            answers[index].add(output)


async def _body(request: web.Request) -> object:
    if request.content_type != "application/json":
        raise InvalidRequest("the content type must be application/json", param="body")
    try:
        return orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", param="body") from error


def _json(data: dict[str, Any] | list[dict[str, Any]], parsed: Parsed | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(data), content_type="application/json", headers=_notes(parsed))


def _notes(parsed: Parsed | None) -> dict[str, str]:
    """What was passed over: a prediction that the plan does not use; and what speaks against the drafter."""
    if parsed is None:
        return {}
    ignored = "prediction" if parsed.has_unused_prediction else ""
    notes = {"x-outrider-ignored": ignored, "x-outrider-warning": parsed.warning or ""}
    return {name: text for name, text in notes.items() if text}


async def _event_stream(request: web.Request, parsed: Parsed) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **_notes(parsed)})
    response.headers["Cache-Control"] = "no-cache"
    await response.prepare(request)
    return response


@web.middleware
async def _errors_as_bodies(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except APIError as error:
        if request.path == "/generate":
            body: dict[str, Any] = {"error": {"message": error.message, "param": error.param, "code": error.code}}
        else:
            body = replies.error_body(error)
        return web.json_response(body, status=error.status)


@asynccontextmanager
async def serving(options: ServerOptions) -> AsyncIterator[str]:
    """Load the model and listen for the block; gives the URL.

    ModelError when the model cannot be served, ConfigError when the address cannot be listened on.
    """
    metrics = EngineMetrics()
    cost = None if options.cost_table is None else read_table(options.cost_table)
    loop = await EngineLoop.start(
        lambda: Engine(options.model, options.limits, options.drafting, cost), metrics.observe
    )
    # Without handler_cancellation a client that leaves would decode on to its last token.
    app = EngineServer(loop, metrics, options).app()
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, options.host, options.port, backlog=1024).start()
        except OSError as error:
            raise ConfigError(f"cannot listen on {options.host}:{options.port}: {error.strerror}") from error
        yield f"http://{options.host}:{runner.addresses[0][1]}"
    finally:
        await loop.stop()
        await runner.cleanup()


async def run(options: ServerOptions, on_ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGTERM or until standard input ends; `on_ready` gets the URL once requests are taken."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if options.exits_with_stdin:
        await _watch_standard_input(stop)
    async with serving(options) as url:
        on_ready(url)
        await stop.wait()


async def _watch_standard_input(stop: asyncio.Event) -> None:
    """Set `stop` at the end of standard input; a callback of the loop, so no task has to be kept."""

    class Watcher(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            stop.set()

    await asyncio.get_running_loop().connect_read_pipe(Watcher, sys.stdin)
