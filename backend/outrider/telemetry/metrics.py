"""All metrics of one gateway: one object, one registry, no module state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from outrider.core import GpuLoad, LaneState, Outcome
from outrider.telemetry.merge import LabelledRegistry

#: Content type of `Metrics.render`.
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_LENGTHS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 17.0)


class Metrics:
    """Counts what the gateway does; every name begins with `outrider_`."""

    def __init__(self, worker: int | None = None) -> None:
        """`worker` is its number, and a label of everything, when it is one of several processes."""
        self.registry = registry = CollectorRegistry() if worker is None else LabelledRegistry(worker)
        # Finding a child by its labels is what costs most of counting.
        self._child = cache(_labelled)
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._add_times(counter, histogram)
        self._add_lanes(counter, gauge)
        self._requests = counter(
            "outrider_requests", "HTTP requests answered; 499: the client left", ["route", "status"]
        )
        self._errors = counter("outrider_request_errors", "Generations that failed", ["code"])
        self._decisions = counter("outrider_decisions", "Policy decisions", ["workload", "rule", "drafter", "k"])
        self._trials = counter(
            "outrider_trials",
            "Requests that a workload and its trial both decided; same, other: the plan, refused: by one of them",
            ["workload", "trial", "mode", "result"],
        )
        self._trial_s = counter(
            "outrider_trial_token_seconds",
            "Expected seconds of a token, summed over those that neither refused, by whose plan: live, trial",
            ["workload", "trial", "mode", "plan"],
        )
        self._wasted = counter(
            "outrider_wasted_draft_tokens", "Draft tokens verified and not accepted", ["workload", "tenant"]
        )
        self._accept_length = histogram(
            "outrider_accept_length",
            "Tokens per verify step, one per request",
            ["workload", "tenant"],
            buckets=_LENGTHS,
        )
        self._slow_gaps = counter("outrider_slow_gaps", "Pauses of over half a second between two events of a stream")
        self._reloads = counter("outrider_reloads", "Configuration read again", ["result"])
        self._loop_lag = histogram("outrider_event_loop_lag_seconds", "How late the loop woke up", buckets=_GAPS)
        self._accepted = counter("outrider_accepted_draft_tokens", "Draft tokens accepted")
        self._proposed = counter("outrider_proposed_draft_tokens", "Draft tokens verified")
        self._verify_steps = counter("outrider_verify_steps", "Target forwards that verified drafts")
        self._bad_statistics = counter(
            "outrider_bad_lane_statistics", "Answers whose speculation counts contradict themselves"
        )

    def _add_lanes(self, counter: partial[Counter], gauge: partial[Gauge]) -> None:
        """What state lanes are in, and how requests go there."""
        self._lane_state = gauge("outrider_lane_state", "1 for the state that the lane is in", ["lane", "state"])
        self._gpu_utilisation = gauge(
            "outrider_gpu_utilisation", "Share of time with a kernel running", ["lane", "gpu"]
        )
        self._gpu_memory = gauge("outrider_gpu_memory_used_bytes", "Memory in use on a lane's GPU", ["lane", "gpu"])
        self._aborts = counter("outrider_aborts_sent", "Abort calls to lanes", ["result"])
        self._attempts = counter(
            "outrider_lane_attempts",
            "Requests sent to lanes; busy: refused for load, left: ended by the client or a deadline",
            ["lane", "result"],
        )
        self._retries = counter("outrider_retries", "Requests sent again before anything was delivered", ["code"])
        self._breakers = gauge(
            "outrider_lane_breaker_open", "1 while the lane is left out for its failures", ["lane"]
        )
        self._restarts = counter("outrider_lane_restarts", "Restarts of lane processes", ["lane"])

    def _add_times(self, counter: partial[Counter], histogram: partial[Histogram]) -> None:
        """How long the parts of a request take, and how many tokens they make."""
        self._per_event = histogram(
            "outrider_tokens_per_step",
            "Tokens per event of a stream, which is a step of the engine; one per stream",
            buckets=_LENGTHS,
        )
        self._queue = histogram("outrider_queue_seconds", "Arrival to a place at a lane", buckets=_SECONDS)
        self._tokens = counter("outrider_completion_tokens", "Tokens generated", ["workload", "tenant"])
        self._inter_token = histogram("outrider_inter_token_seconds", "Mean of one answer", buckets=_GAPS)
        self._first_event = histogram("outrider_first_event_seconds", "Arrival to first event", buckets=_SECONDS)
        self._total = histogram("outrider_total_seconds", "Arrival to end", buckets=_SECONDS)

    def watch(self, *, num_in_flight: Callable[[], int], num_queued: Callable[[], int]) -> None:
        """Read these two on every scrape. Call once."""
        in_flight = Gauge("outrider_in_flight", "Requests at lanes", registry=self.registry)
        in_flight.set_function(num_in_flight)
        queued = Gauge("outrider_queued", "Requests waiting for admission", registry=self.registry)
        queued.set_function(num_queued)

    def watch_runs(
        self, *, num_open: Callable[[], int], num_unsaved: Callable[[], int], is_healthy: Callable[[], bool]
    ) -> None:
        """Read these on every scrape, where runs are kept. Call once."""
        gauges: dict[str, tuple[str, Callable[[], int]]] = {
            "outrider_runs_open": ("Durable runs of this process that have not ended", num_open),
            "outrider_runs_unsaved": ("Ends of runs that could not be stored yet", num_unsaved),
            "outrider_runs_healthy": ("1 while runs are looked after and their store can be used", is_healthy),
        }
        for name, (what, read) in gauges.items():
            Gauge(name, what, registry=self.registry).set_function(read)

    def answered(self, route: str, status: int) -> None:
        """Count one HTTP request."""
        self._child(self._requests, route, str(status)).inc()

    def decided(self, workload: str, rule: str, drafter: str, k: int) -> None:
        """Count one decision of the policy."""
        self._child(self._decisions, workload, rule, drafter, str(k)).inc()

    def tried(self, trial: tuple[str, str, str], result: str, rates: tuple[float, float] | None) -> None:
        """Count what two workloads decided: the request's, that of its trial, and its mode; `rates` are tokens/s."""
        self._child(self._trials, *trial, result).inc()
        for plan, rate in zip(("live", "trial"), rates or (), strict=False):
            self._child(self._trial_s, *trial, plan).inc(1 / rate)

    def ended(self, outcome: Outcome) -> None:
        """Count how one generation ended, and its speculation."""
        if outcome.error_code is not None:
            self._child(self._errors, outcome.error_code).inc()
        if outcome.first_event_s is not None:
            self._first_event.observe(outcome.first_event_s)
        self._total.observe(outcome.total_s)
        if outcome.num_slow_gaps:
            self._slow_gaps.inc(outcome.num_slow_gaps)
        decode_s, num_tokens = outcome.phases.get("decode"), outcome.num_completion_tokens or 0
        if decode_s is not None and outcome.num_events > 1 and num_tokens > 1:
            self._inter_token.observe(decode_s / (num_tokens - 1))
        if "admit" in outcome.phases:
            self._queue.observe(outcome.phases["admit"])
        if num_tokens:
            self._child(self._tokens, outcome.workload, outcome.tenant).inc(num_tokens)
        if outcome.num_events > 1 and num_tokens:
            self._per_event.observe(num_tokens / outcome.num_events)
        if outcome.stats is not None:
            self._accept_length.labels(outcome.workload, outcome.tenant).observe(outcome.stats.accept_length)
            self._verify_steps.inc(outcome.stats.num_verify_steps)
            self._accepted.inc(outcome.stats.num_accepted)
            if outcome.stats.num_proposed is not None:
                self._proposed.inc(outcome.stats.num_proposed)
                wasted = outcome.stats.num_proposed - outcome.stats.num_accepted
                self._wasted.labels(outcome.workload, outcome.tenant).inc(wasted)

    def reloaded(self, is_good: bool) -> None:
        """Count a reload; a bad one changed nothing."""
        self._reloads.labels("applied" if is_good else "refused").inc()

    def loop_lagged(self, seconds: float) -> None:
        """Note how much later than asked the event loop woke a sleeper."""
        self._loop_lag.observe(seconds)

    def statistics_refused(self) -> None:
        """Count a lane's statistics that could not be believed."""
        self._bad_statistics.inc()

    def abort_sent(self, is_delivered: bool) -> None:
        """Count an abort call, delivered or not."""
        self._aborts.labels("delivered" if is_delivered else "failed").inc()

    def attempted(self, lane: str, result: str) -> None:
        """Count how one request went at one lane."""
        self._child(self._attempts, lane, result).inc()

    def retried(self, code: str | None) -> None:
        """Count a request that is sent again, by the error of the attempt before."""
        self._retries.labels(code or "none").inc()

    def lane_restarted(self, lane: str) -> None:
        """Count a restart of a lane's process."""
        self._restarts.labels(lane).inc()

    def render(
        self,
        lanes: Mapping[str, LaneState],
        gpus: Mapping[str, Sequence[GpuLoad] | None] | None = None,
        breakers: Mapping[str, bool] | None = None,
    ) -> bytes:
        """The page in Prometheus' text format, with the lanes and their GPUs as they are now and no others.

        `breakers` says which lanes' are open.
        """
        for gauge in (self._lane_state, self._gpu_utilisation, self._gpu_memory, self._breakers):
            gauge.clear()
        for lane, is_open in (breakers or {}).items():
            self._breakers.labels(lane).set(is_open)
        for lane, loads in (gpus or {}).items():
            for gpu in loads or ():
                if gpu.utilisation is not None:
                    self._gpu_utilisation.labels(lane, str(gpu.index)).set(gpu.utilisation)
                self._gpu_memory.labels(lane, str(gpu.index)).set(gpu.used_bytes)
        for name, current in lanes.items():
            for state in LaneState:
                self._lane_state.labels(name, state.value).set(state is current)
        return generate_latest(self.registry)


def _labelled(metric: Counter, *labels: str) -> Counter:
    return metric.labels(*labels)
