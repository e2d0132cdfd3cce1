from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as LibraryHistogram
from prometheus_client.exposition import generate_latest

from outrider.telemetry.tally import Counter, Histogram

BOUNDS = (0.005, 0.5, 1.0, 60.0)


def page(registry):
    """Without the lines that say since when the library counts."""
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


@given(st.lists(st.tuples(st.sampled_from(BOUNDS) | st.floats(-1, 100), st.sampled_from(["a", "b"])), max_size=20))
def test_a_histogram_tells_what_the_librarys_own_tells(values):
    """Line by line, with values on bounds, below all and above all of them."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("seconds", "Time", ["lane"], buckets=BOUNDS, registry=ours)
    library = LibraryHistogram("seconds", "Time", ["lane"], buckets=BOUNDS, registry=theirs)
    for value, lane in values:
        histogram.observe(value, lane)
        library.labels(lane).observe(value)
    assert page(ours) == page(theirs)


def test_a_histogram_without_labels_is_there_before_the_first_value():
    """With zeros: a series that appears later would hide the first increase."""
    registry = CollectorRegistry()
    Histogram("seconds", "Time", buckets=BOUNDS, registry=registry)
    assert page(registry)[-3:] == ['seconds_bucket{le="+Inf"} 0.0', "seconds_count 0.0", "seconds_sum 0.0"]


def test_a_counter_counts_by_labels():
    """By one or by what is given; one without labels begins with 0."""
    registry = CollectorRegistry()
    errors = Counter("errors", "Errors", ["code", "lane"], registry=registry)
    Counter("steps", "Steps", registry=registry)
    errors.inc("busy", "one")
    errors.inc("busy", "one", by=2)
    errors.inc("left", "two")
    samples = {line for line in page(registry) if not line.startswith("#")}
    assert samples == {
        'errors_total{code="busy",lane="one"} 3.0',
        'errors_total{code="left",lane="two"} 1.0',
        "steps_total 0.0",
    }
