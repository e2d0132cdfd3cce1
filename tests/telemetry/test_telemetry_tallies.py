from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from outrider.telemetry.tallies import Spread, Tally

BOUNDS = (0.005, 0.1, 1.0, 2.5, 300.0)
LABELS = st.sampled_from([("a", "b"), ("a", 'quo"te'), ("", "ü\n")])
VALUES = st.sampled_from([0.0, *BOUNDS, 301.0]) | st.floats(0, 400)


def page(registry):
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


@settings(max_examples=60)
@given(st.lists(st.tuples(LABELS, VALUES)), st.lists(VALUES))
def test_the_page_is_that_of_the_librarys_own(labelled, plain):
    """But for the times at which series began: what was counted, by labels and by bounds, a value on a bound too."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    count = Tally("count", "What", ["x", "y"], registry=ours)
    bare = Tally("bare", "What", registry=ours)
    spread = Spread("spread", "What", ["x", "y"], bounds=BOUNDS, registry=ours)
    alone = Spread("alone", "What", bounds=BOUNDS, registry=ours)
    known_count = Counter("count", "What", ["x", "y"], registry=theirs)
    known_bare = Counter("bare", "What", registry=theirs)
    known_spread = Histogram("spread", "What", ["x", "y"], buckets=BOUNDS, registry=theirs)
    known_alone = Histogram("alone", "What", buckets=BOUNDS, registry=theirs)
    for labels, value in labelled:
        count.add(*labels, num=value)
        known_count.labels(*labels).inc(value)
        spread.add(value, *labels)
        known_spread.labels(*labels).observe(value)
    for value in plain:
        bare.add()
        known_bare.inc()
        alone.add(value)
        known_alone.observe(value)
    assert page(ours) == page(theirs)
