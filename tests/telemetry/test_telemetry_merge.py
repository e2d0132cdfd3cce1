"""Pages of several workers as one."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from outrider.core import LaneState, Outcome
from outrider.telemetry.merge import merged
from outrider.telemetry.metrics import Metrics


def page(worker, num_requests):
    metrics = Metrics(worker)
    for _ in range(num_requests):
        metrics.answered("/v1/models", 200)
        metrics.ended(Outcome(200, first_event_s=0.2, total_s=0.4))
    return metrics.render({"a": LaneState.READY}).decode()


def test_every_worker_keeps_its_own_series():
    """Under a label, so that one that begins anew is a counter that begins anew."""
    text = merged([page(0, 2), page(1, 3)])
    families = {family.name: family for family in text_string_to_metric_families(text)}
    counts = {
        one.labels["worker"]: one.value
        for one in families["outrider_requests"].samples
        if one.name == "outrider_requests_total"
    }
    assert counts == {"0": 2.0, "1": 3.0}
    ends = [one for one in families["outrider_first_event_seconds"].samples if one.name.endswith("_count")]
    assert sorted((one.labels["worker"], one.value) for one in ends) == [("0", 2.0), ("1", 3.0)]
    assert all("worker" in one.labels for family in families.values() for one in family.samples)


def test_a_name_is_told_once_and_its_samples_stand_together():
    """As the format demands."""
    lines = merged([page(0, 1), page(1, 1)]).splitlines()
    helps = [line.split(" ")[2] for line in lines if line.startswith("# HELP ")]
    assert len(helps) == len(set(helps))
    assert len(page(0, 1).splitlines()) * 2 == len(lines) + 2 * len(helps)


def test_one_process_has_no_label():
    """Its page is as it always was."""
    assert "worker=" not in Metrics().render({}).decode()
