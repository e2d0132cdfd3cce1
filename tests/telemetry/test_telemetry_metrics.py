from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from outrider.core import LaneState, Outcome, SpecStats
from outrider.telemetry.metrics import Metrics


def samples(metrics, lanes=None):
    page = metrics.render(lanes or {}).decode()
    families = text_string_to_metric_families(page)
    return {(one.name, *sorted(one.labels.items())): one.value for family in families for one in family.samples}


def test_outcomes_are_counted():
    """Errors by code, speculation and times."""
    metrics = Metrics()
    metrics.ended(Outcome(200, stats=SpecStats(3, 2, (1, 2), 9), first_event_s=0.2, total_s=0.4))
    metrics.ended(Outcome(502, error_code="lane_failed", total_s=0.1))
    seen = samples(metrics)
    assert seen[("outrider_request_errors_total", ("code", "lane_failed"))] == 1
    assert seen[("outrider_accepted_draft_tokens_total",)] == 2
    assert seen[("outrider_proposed_draft_tokens_total",)] == 9
    assert seen[("outrider_verify_steps_total",)] == 3
    assert seen[("outrider_first_event_seconds_count",)] == 1
    assert seen[("outrider_total_seconds_sum",)] == 0.5


def test_unknown_proposals_are_not_counted_as_any():
    """A lane that cannot count them adds nothing."""
    metrics = Metrics()
    metrics.ended(Outcome(200, stats=SpecStats(1, 1, (0, 1), None)))
    assert samples(metrics)[("outrider_proposed_draft_tokens_total",)] == 0


def test_requests_decisions_aborts_and_restarts_have_their_labels():
    """One count each."""
    metrics = Metrics()
    metrics.answered("/v1/models", 200)
    metrics.decided("code", "cool", "ngram", 5)
    metrics.tried(("code", "next", "shadow"), "other", (50.0, 100.0))
    metrics.tried(("code", "next", "shadow"), "refused", None)
    metrics.abort_sent(True)
    metrics.abort_sent(False)
    metrics.lane_restarted("a")
    metrics.statistics_refused()
    seen = samples(metrics)
    assert seen[("outrider_requests_total", ("route", "/v1/models"), ("status", "200"))] == 1
    labels = (("drafter", "ngram"), ("k", "5"), ("rule", "cool"), ("workload", "code"))
    assert seen[("outrider_decisions_total", *labels)] == 1
    trial = ("trial", "next"), ("workload", "code")
    for result in ("other", "refused"):
        assert seen["outrider_trials_total", ("mode", "shadow"), ("result", result), *trial] == 1
    for plan, spent_s in (("live", 0.02), ("trial", 0.01)):
        assert seen["outrider_trial_token_seconds_total", ("mode", "shadow"), ("plan", plan), *trial] == spent_s
    assert seen[("outrider_aborts_sent_total", ("result", "delivered"))] == 1
    assert seen[("outrider_aborts_sent_total", ("result", "failed"))] == 1
    assert seen[("outrider_lane_restarts_total", ("lane", "a"))] == 1
    assert seen[("outrider_bad_lane_statistics_total",)] == 1


def test_the_lanes_state_is_the_one_at_the_time_of_the_page():
    """Exactly one state is 1."""
    metrics = Metrics()
    for state in (LaneState.STARTING, LaneState.READY, LaneState.FAILED):
        seen = samples(metrics, {"a": state})
        values = {one.value: seen[("outrider_lane_state", ("lane", "a"), ("state", one.value))] for one in LaneState}
        assert values == {one.value: float(one is state) for one in LaneState}


def test_a_lane_that_is_gone_is_on_no_page():
    """Addresses of a name come and go; the others stay."""
    metrics = Metrics()
    samples(metrics, {"a@1": LaneState.READY, "a@2": LaneState.READY})
    seen = samples(metrics, {"a@2": LaneState.READY})
    assert {labels[0] for name, *labels in seen if name == "outrider_lane_state"} == {("lane", "a@2")}


def test_gauges_are_read_on_every_page():
    """They are functions, not copies."""
    metrics, numbers = Metrics(), [3, 4]
    metrics.watch(num_in_flight=lambda: numbers[0], num_queued=lambda: numbers[1])
    assert (samples(metrics)[("outrider_in_flight",)], samples(metrics)[("outrider_queued",)]) == (3, 4)
    numbers[0] = 0
    assert samples(metrics)[("outrider_in_flight",)] == 0


def test_two_gateways_do_not_share_counts():
    """The registry belongs to the object."""
    one, other = Metrics(), Metrics()
    one.lane_restarted("a")
    assert ("outrider_lane_restarts_total", ("lane", "a")) not in samples(other)


def test_waste_is_counted_per_workload_and_tenant():
    """Verified drafts that were not accepted; those of a lane that cannot count are not guessed."""
    metrics = Metrics()
    metrics.ended(Outcome(200, stats=SpecStats(3, 2, (1, 2), 9), workload="code", tenant="team"))
    metrics.ended(Outcome(200, stats=SpecStats(3, 2, (1, 2), None), workload="chat", tenant="team"))
    seen = samples(metrics)
    assert seen[("outrider_wasted_draft_tokens_total", ("tenant", "team"), ("workload", "code"))] == 7
    assert ("outrider_wasted_draft_tokens_total", ("tenant", "team"), ("workload", "chat")) not in seen
    for workload in ("code", "chat"):
        labels = (("tenant", "team"), ("workload", workload))
        assert seen[("outrider_accept_length_count", *labels)] == 1
        assert seen[("outrider_accept_length_sum", *labels)] == 1 + 2 / 3


def test_tokens_and_waiting_are_measured():
    """Tokens per workload and tenant, tokens per step of streams, and the time until there was a place."""
    metrics = Metrics()
    metrics.ended(Outcome(200, num_completion_tokens=12, num_events=4, phases={"admit": 0.25}, workload="code"))
    metrics.ended(Outcome(200, num_completion_tokens=5, num_events=1, phases={"admit": 0.5}, workload="code"))
    metrics.ended(Outcome(503, error_code="queue_full"))
    seen = samples(metrics)
    assert seen[("outrider_completion_tokens_total", ("tenant", "none"), ("workload", "code"))] == 17
    assert (seen[("outrider_tokens_per_step_count",)], seen[("outrider_tokens_per_step_sum",)]) == (1, 3)
    assert (seen[("outrider_queue_seconds_count",)], seen[("outrider_queue_seconds_sum",)]) == (2, 0.75)


def test_the_pace_of_streams_is_measured():
    """Mean time between tokens, and pauses; a whole answer has no pace."""
    metrics = Metrics()
    metrics.ended(Outcome(200, num_completion_tokens=11, num_events=5, num_slow_gaps=2, phases={"decode": 1.0}))
    metrics.ended(Outcome(200, num_completion_tokens=11, num_events=1, phases={"decode": 1.0}))
    seen = samples(metrics)
    assert seen[("outrider_inter_token_seconds_count",)] == 1
    assert seen[("outrider_inter_token_seconds_sum",)] == 0.1
    assert seen[("outrider_slow_gaps_total",)] == 2


def test_reloads_and_the_loops_lag():
    """Applied and refused apart."""
    metrics = Metrics()
    metrics.reloaded(True)
    metrics.reloaded(False)
    metrics.loop_lagged(0.02)
    seen = samples(metrics)
    assert seen[("outrider_reloads_total", ("result", "applied"))] == 1
    assert seen[("outrider_reloads_total", ("result", "refused"))] == 1
    assert seen[("outrider_event_loop_lag_seconds_sum",)] == 0.02
