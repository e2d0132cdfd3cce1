"""Spans of requests, in memory and at a collector, and the context that lanes get."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from gateway.world import world
from outrider.config import TracingSection
from outrider.runtimes.scripted_replies import error_reply
from outrider.telemetry.tracing import Tracing, tracing_to

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@asynccontextmanager
async def traced(reply=None, sampler=ALWAYS_ON):
    """A gateway whose spans are kept in memory."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with world(reply) as w:
        w.gateway.dispatcher.tracing = Tracing(provider)
        yield w, exporter


async def test_a_request_is_a_span_with_its_phases_and_what_was_decided():
    """All in one trace, in order, none longer than the request."""
    async with traced() as (w, exporter):
        async with w.chat(stream=True, outrider={"drafter": "ngram", "k": 3}) as response:
            await response.read()
        *phases, span = exporter.get_finished_spans()
        assert [one.name for one in phases] == ["admit", "plan", "prefill", "decode"]
        assert span.name == "POST /v1/chat/completions"
        assert {one.parent.span_id for one in phases} == {span.context.span_id}
        assert phases[0].start_time == span.start_time <= phases[0].end_time == phases[1].start_time
        assert phases[-1].end_time <= span.end_time + 1e6
        told = dict(span.attributes)
        assert (told["outrider.lane"], told["outrider.drafter"], told["outrider.k"]) == ("scripted", "ngram", 3)
        assert (told["http.response.status_code"], told["outrider.accept_length"]) == (200, pytest.approx(5 / 3))


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF])
async def test_the_lane_gets_the_context(sampler):
    """The client's trace goes on with our span as the lane's parent; a trace that is not sampled says so."""
    async with traced(sampler=sampler) as (w, exporter):
        headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "vendor=1"}
        async with w.chat(headers=headers) as response:
            assert response.status == 200
        version, trace_id, span_id, flags = w.upstream.headers["traceparent"].split("-")
        assert (version, trace_id, w.upstream.headers["tracestate"]) == ("00", TRACE_ID, "vendor=1")
        spans = exporter.get_finished_spans()
        if sampler is ALWAYS_OFF:
            assert (flags, spans) == ("00", ())
        else:
            assert (flags, span_id) == ("01", f"{spans[-1].context.span_id:016x}")
            assert f"{spans[-1].parent.span_id:016x}" == PARENT_ID


async def test_failures_are_told():
    """With their code, and as errors when they are the service's."""
    async with traced(lambda _: error_reply(503)) as (w, exporter):
        async with w.chat() as response:
            assert response.status == 503
        async with w.chat(model="other") as response:
            assert response.status == 404
        lane, caller = (one for one in exporter.get_finished_spans() if one.parent is None)
        assert (lane.status.is_ok, lane.attributes["error.type"]) == (False, "lane_busy")
        assert (caller.status.is_ok, caller.attributes["error.type"]) == (True, "model_not_found")


async def test_without_tracing_the_context_passes_as_it_came():
    """Off is the default: the lane gets the client's own, and no library is loaded."""
    async with world() as w:
        async with w.chat(headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}) as response:
            assert response.status == 200
        assert w.upstream.headers["traceparent"] == f"00-{TRACE_ID}-{PARENT_ID}-01"
    code = "import sys, outrider.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0


async def test_a_collector_gets_the_spans():
    """Over HTTP as OTLP; what is not sent yet goes out at the end."""
    got = []

    async def take(request):
        got.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    tracing = tracing_to(f"http://127.0.0.1:{port}/v1/traces", 1.0)
    async with world() as w:
        w.gateway.dispatcher.tracing = tracing
        async with w.chat() as response:
            assert response.status == 200
    await runner.cleanup()
    (request,) = got
    (spans,) = request.resource_spans
    assert "outrider" in {one.value.string_value for one in spans.resource.attributes}
    assert "POST /v1/chat/completions" in {one.name for scope in spans.scope_spans for one in scope.spans}
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_collector_that_hangs_does_not_hold_up_the_end(caplog):
    """What is left is given up after a while, and the log says so."""
    answers = threading.Event()

    class Stuck(SpanProcessor):
        def shutdown(self):
            answers.wait()

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Stuck())
    try:
        async with asyncio.timeout(60):
            await Tracing(provider).close(within_s=0.05)
        assert "spans" in caplog.text
    finally:
        answers.set()


def test_only_a_url_is_an_endpoint():
    """Anything else is refused at the start."""
    with pytest.raises(ValueError, match="endpoint"):
        TracingSection(endpoint="collector:4318")
