"""From records to figures: what one request shows, how cells sum up, intervals, and one arm against another."""

from __future__ import annotations

import random
from typing import Any

import pytest

from outrider.core import Observed, WirePlan
from outrider.workloads.figures import against, cells_of, gaps_ms, is_within, tokens_per_step, tpot_ms, ttft_ms
from outrider.workloads.resample import Resample
from outrider.workloads.results import Record, Slo, Step

OBSERVED = Observed(
    num_verify_steps=4, num_proposed=9, num_accepted=6, accept_length=2.5, accepted_histogram=[1, 0, 3]
)


def record(number: int = 0, steps: Any = ((1.5, 1), (1.6, 3), (2.5, 4)), **fields: Any) -> Record:
    made = {
        "arm": "off", "round": 0, "number": number, "prompt": "p", "task": "chat", "temperature": 0.0,
        "max_tokens": 8, "intended_s": 1.0, "sent_s": 1.1, "end_s": 3.0, "status": 200, "num_tokens": 8,
        "text": "abc", "asked": "q",
    }  # fmt: skip
    return Record(steps=[Step(at_s=at_s, num_tokens=num) for at_s, num in steps], **(made | fields))


def test_latency_counts_from_the_intended_moment() -> None:
    """A request that waited to be sent has waited."""
    assert ttft_ms(record()) == pytest.approx(500)
    assert ttft_ms(record(sent_s=1.49)) == pytest.approx(500)
    assert ttft_ms(record(steps=())) is None


def test_time_per_token_leaves_out_the_first_event() -> None:
    """With all of its tokens where they are counted, as one token where they are not."""
    assert tpot_ms(record()) == pytest.approx(1000 / 7)
    assert tpot_ms(record(steps=((1.5, 4), (2.5, 4)))) == pytest.approx(250)
    assert tpot_ms(record(steps=((1.5, None), (2.5, None)))) == pytest.approx(1000 / 7)
    assert tpot_ms(record(steps=((1.5, 8),))) is None
    assert tpot_ms(record(num_tokens=None)) is None


def test_steps_and_gaps_are_of_events() -> None:
    """A burst of tokens is one step; the pause before it is one gap."""
    assert tokens_per_step(record()) == pytest.approx(8 / 3)
    assert gaps_ms(record()) == pytest.approx([100, 900])
    (whole, _) = cells_of([record()], None)
    assert (whole.num_slow_gaps, whole.metrics["gap_ms"].num) == (1, 2)


def test_cells_are_of_all_and_of_each_task_and_temperature() -> None:
    """Failed requests count as such and have no figures; plans are counted."""
    plan = WirePlan(drafter="ngram", k=4)
    records = [
        record(0, effective=plan, observed=OBSERVED), record(1, task="code", effective=plan),
        record(2, temperature=0.7, error="timeout", steps=()), record(0, arm="policy"),
    ]  # fmt: skip
    cells = cells_of(records, None)
    assert [(one.arm, one.task, one.temperature, one.num_requests, one.num_failed) for one in cells] == [
        ("off", None, None, 3, 1), ("off", "chat", 0.0, 1, 0), ("off", "code", 0.0, 1, 0), ("off", "chat", 0.7, 1, 1),
        ("policy", None, None, 1, 0), ("policy", "chat", 0.0, 1, 0),
    ]  # fmt: skip
    assert cells[0].plans == {"ngram k=4": 2} and cells[0].num_tokens == 16
    assert (cells[0].accept_length.value, cells[0].num_wasted) == (2.5, 3)
    assert cells[0].accepted_histogram == [1, 0, 3]
    assert "queue_ms" not in cells[0].metrics
    assert cells[2].accept_length is None and cells[2].num_wasted is None
    assert cells[3].metrics == {}


def test_a_lane_that_cannot_count_proposals_leaves_waste_unknown() -> None:
    """One such request is enough: missing is not zero."""
    unknown = OBSERVED.model_copy(update={"num_proposed": None})
    (whole, *_) = cells_of([record(0, observed=OBSERVED), record(1, observed=unknown)], None)
    assert (whole.num_accepted, whole.num_proposed, whole.num_wasted) == (12, None, None)


def test_the_slo_holds_for_failed_requests_too() -> None:
    """They do not keep it; one event cannot break the time per token."""
    slo = Slo(ttft_ms=600, tpot_ms=150)
    assert is_within(record(), slo)
    assert not is_within(record(error="timeout"), slo)
    assert not is_within(record(intended_s=0.8), slo)
    assert not is_within(record(num_tokens=5), slo)
    assert is_within(record(steps=((1.5, 8),)), slo)
    (whole, *_) = cells_of([record(0), record(1, error="timeout"), record(2), record(3)], slo)
    assert whole.share_within_slo.value == 0.75


def test_percentiles_are_values_that_were_seen() -> None:
    """The one at or below which the share lies."""
    found = Resample(range(100)).distribution([(i, float(i + 1)) for i in range(100)])
    assert (found.p50.value, found.p90.value, found.p99.value) == (50, 90, 99)
    assert found.p50.low < 50 < found.p50.high and found.num == 100
    assert Resample([]).distribution([]) is None


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Of 100 samples of 30 requests each, whose median is known: 95 % but for chance."""
    held = 0
    for seed in range(100):
        rng = random.Random(seed)
        jobs = range(30)
        found = Resample(jobs).median([(job, rng.expovariate(1.0)) for job in jobs])
        held += found.low <= 0.6931 <= found.high
    assert 88 <= held <= 99


def test_values_of_one_job_are_drawn_together() -> None:
    """Ten jobs of a hundred equal pauses are ten observations, not a thousand."""
    rng = random.Random(3)
    level = [rng.gauss(10, 2) for _ in range(10)]
    together = Resample(range(10)).distribution([(job, level[job]) for job in range(10) for _ in range(100)])
    apart = Resample(range(1000)).distribution([(i, level[i % 10]) for i in range(1000)])
    assert together.p50.high - together.p50.low > 4 * (apart.p50.high - apart.p50.low)
    assert (together.p50.num_jobs, apart.p50.num_jobs) == (10, 1000)


def test_few_jobs_have_no_interval() -> None:
    """Five that all lie on one side of the truth are not rare enough."""
    assert not Resample(range(5)).median([(job, 1.0) for job in range(5)]).has_interval
    assert Resample(range(6)).median([(job, 1.0) for job in range(6)]).has_interval


def test_arms_are_compared_request_by_request() -> None:
    """Only those that both answered; texts only at temperature 0, and only where the same was asked."""
    base = [record(i, steps=((1.5, 1), (1.5 + 0.7 * (i + 1), 7)), temperature=0.0 if i else 0.7) for i in range(4)]
    ours = [
        one.model_copy(
            update={"arm": "policy", "steps": [one.steps[0], Step(at_s=1.5 + 0.35 * (i + 1), num_tokens=7)]}
        )
        for i, one in enumerate(base)
    ]
    ours[1] = ours[1].model_copy(update={"text": "other"})
    ours[2] = ours[2].model_copy(update={"asked": "another"})
    ours[3] = ours[3].model_copy(update={"error": "timeout"})
    whole, hot, greedy = against(ours, base)
    assert (whole.arm, whole.base, whole.num, whole.task) == ("policy", "off", 3, None)
    assert whole.ratios["tokens_per_s"].value == pytest.approx(2.0)
    assert whole.ratios["tpot_ms"].value == pytest.approx(0.5)
    assert (hot.temperature, hot.num_same_text, hot.num_compared_text) == (0.7, None, 0)
    assert (greedy.num, greedy.num_same_text, greedy.num_compared_text) == (2, 0, 1)
    assert against([], base) == []
