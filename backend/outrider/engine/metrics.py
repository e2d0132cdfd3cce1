"""Prometheus metrics of the engine, under SGLang's names where SGLang has the same figure."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest

from outrider.engine.engine import Output
from outrider.engine.loop import EngineLoad


class EngineMetrics:
    """Counts outputs as they pass, and reads the load when scraped."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("sglang:num_requests", "Requests that ended", ["finish"], registry=self._registry)
        self._tokens = Counter("sglang:generation_tokens", "Tokens emitted", registry=self._registry)
        self._verify_steps = Counter(
            "sglang:spec_verify_calls", "Verify steps of ended requests", registry=self._registry
        )
        self._proposed = Counter("outrider:spec_proposed", "Draft tokens of ended requests", registry=self._registry)
        self._accepted = Counter("outrider:spec_accepted", "Draft tokens accepted", registry=self._registry)
        self._failures = Counter("outrider:drafter_failures", "Faults in drafters", registry=self._registry)
        self._near_ties = Counter(
            "outrider:near_ties",
            "Tokens that rounding could have changed, where that is known",
            registry=self._registry,
        )
        self._running = Gauge("sglang:num_running_reqs", "Running requests", registry=self._registry)
        self._waiting = Gauge("sglang:num_queue_reqs", "Waiting requests", registry=self._registry)
        self._used = Gauge("sglang:num_used_tokens", "Cache positions in use", registry=self._registry)
        self._rate = Gauge("sglang:gen_throughput", "Tokens per second", registry=self._registry)

    def observe(self, output: Output) -> None:
        """Count what a step gave one sequence."""
        self._tokens.inc(len(output.token_ids))
        self._near_ties.inc(len(output.near_ties or ()))
        if output.finish is not None:
            self._requests.labels(output.finish.kind).inc()
        self._failures.inc(output.num_drafter_failures)
        if output.stats is not None:
            self._verify_steps.inc(output.stats.num_verify_steps)
            self._proposed.inc(output.stats.num_proposed or 0)
            self._accepted.inc(output.stats.num_accepted)

    def render(self, load: EngineLoad) -> bytes:
        """The page of `/metrics`."""
        self._running.set(load.num_running)
        self._waiting.set(load.num_waiting)
        self._used.set(load.num_used_tokens)
        self._rate.set(load.tokens_per_s)
        return generate_latest(self._registry)
