"""Traces of requests, told to an OpenTelemetry collector. Off unless asked for, and then no library is imported."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from outrider.core import Outcome

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)

#: What the end of the gateway may wait for a collector, in seconds.
_CLOSE_S = 5.0
#: The parts of a request, in the order in which they follow each other.
_PHASES = ("admit", "plan", "retry", "prefill", "decode")
_TRACEPARENT = "traceparent"
_TRACESTATE = "tracestate"


class Trace:
    """The span of one request: begun with its arrival, ended with its outcome."""

    def __init__(self, tracing: Tracing, span: Span, headers: Mapping[str, str], began_ns: int) -> None:
        self._tracing, self._span, self._began_ns = tracing, span, began_ns
        self.headers = headers
        """Those of the request, with the span as the parent of whatever the lane does."""

    def end(self, outcome: Outcome, chosen: Mapping[str, str | int]) -> None:
        """Tell how it ended; `chosen` is what the policy decided, empty when nothing was."""
        from opentelemetry.trace import StatusCode

        span = self._span
        values = {
            "http.response.status_code": outcome.status,
            "error.type": outcome.error_code,
            "gen_ai.usage.output_tokens": outcome.num_completion_tokens,
            "gen_ai.server.time_to_first_token": outcome.first_event_s,
            "outrider.workload": outcome.workload,
            "outrider.tenant": outcome.tenant,
            "outrider.accept_length": None if outcome.stats is None else outcome.stats.accept_length,
            **{f"outrider.{name}": value for name, value in chosen.items()},
        }
        span.set_attributes({name: value for name, value in values.items() if value is not None})
        if outcome.status >= 500:
            span.set_status(StatusCode.ERROR, outcome.error_code)
        if span.is_recording():
            self._tracing.tell_phases(span, outcome.phases, self._began_ns)
        span.end(self._began_ns + int(1e9 * outcome.total_s))


class Tracing:
    """Makes the spans of requests; W3C's trace context is read from clients and written to lanes."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("outrider")
        self._context = TraceContextTextMapPropagator()

    def begin(self, route: str, headers: Mapping[str, str], arrived_at_s: float) -> Trace:
        """`headers`, with names in lower case, go to the lane; `arrived_at_s` is `time.monotonic()`."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        began_ns = time.time_ns() - int(1e9 * (time.monotonic() - arrived_at_s))
        span = self._tracer.start_span(
            f"POST {route}", self._context.extract(headers), SpanKind.SERVER, start_time=began_ns,
            attributes={"http.route": route, "outrider.request_id": headers.get("x-request-id", "")},
        )  # fmt: skip
        sent = {name: value for name, value in headers.items() if name not in (_TRACEPARENT, _TRACESTATE)}
        self._context.inject(sent, set_span_in_context(span))
        return Trace(self, span, sent, began_ns)

    def tell_phases(self, span: Span, phases: Mapping[str, float], began_ns: int) -> None:
        """A span below `span` for every phase that was reached."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(span)
        for name in _PHASES:
            if name in phases:
                ends_ns = began_ns + int(1e9 * phases[name])
                self._tracer.start_span(name, context, start_time=began_ns).end(ends_ns)
                began_ns = ends_ns

    async def close(self, within_s: float = _CLOSE_S) -> None:
        """Send what is left, beside the loop: a collector may be slow. One that hangs is given up."""
        # A thread of its own, which does not keep the process: one of the loop's would be waited for at its end.
        ending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, within_s)
        if ending.is_alive():
            logger.warning("the last spans could not be sent within %g s", within_s)


def tracing_to(endpoint: str, sampled: float) -> Tracing:
    """To an OTLP collector over HTTP; of requests that bring no decision with them, a share is traced.

    ImportError without the packages of the extra `tracing`.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    sampler = ParentBased(TraceIdRatioBased(sampled))
    provider = TracerProvider(sampler, Resource.create({"service.name": "outrider"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return Tracing(provider)
