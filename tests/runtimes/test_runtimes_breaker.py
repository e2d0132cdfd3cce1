"""The breaker of a lane: when it opens, for how long, and what closes it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.runtimes.breaker import FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_FAILURES, Breaker


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(MAX_FAILURES):
        breaker.failed(0.0, 0.0)
    return breaker


def test_it_opens_at_the_last_failure_in_a_row_that_is_allowed() -> None:
    """One answer in between begins the count anew."""
    breaker = Breaker()
    for _ in range(MAX_FAILURES - 1):
        breaker.failed(0.0, 0.0)
    breaker.succeeded(0.0)
    for _ in range(MAX_FAILURES - 1):
        breaker.failed(0.0, 0.0)
    assert breaker.lets_pass(0.0) and not breaker.is_open
    breaker.failed(0.0, 0.0)
    assert not breaker.lets_pass(0.0)
    assert breaker.to_wire(0.0) == {
        "state": "open", "num_failures": MAX_FAILURES, "next_probe_in_s": FIRST_PAUSE_S,
    }  # fmt: skip


def test_one_probe_passes_and_its_answer_closes_it() -> None:
    """While it is under way no other does; a probe that never ends is followed by another."""
    breaker = opened()
    now_s = FIRST_PAUSE_S
    assert breaker.lets_pass(now_s) and breaker.to_wire(now_s)["state"] == "half-open"
    breaker.begins(now_s)
    assert not breaker.lets_pass(now_s)
    assert breaker.lets_pass(now_s + FIRST_PAUSE_S)
    breaker.succeeded(now_s)
    assert breaker.lets_pass(now_s) and breaker.to_wire(now_s)["state"] == "closed"


def test_each_probe_that_fails_doubles_the_pause_up_to_the_longest() -> None:
    """After an answer the first pause is the first one again."""
    breaker, now_s, pauses = opened(), 0.0, []
    for _ in range(9):
        left_s = breaker.to_wire(now_s)["next_probe_in_s"]
        pauses.append(left_s)
        now_s += left_s
        breaker.begins(now_s)
        breaker.failed(now_s, now_s)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60] and LONGEST_PAUSE_S == 60
    breaker.succeeded(now_s)
    for _ in range(MAX_FAILURES):
        breaker.failed(now_s, now_s)
    assert breaker.to_wire(now_s)["next_probe_in_s"] == FIRST_PAUSE_S


@given(st.lists(st.floats(0.0, FIRST_PAUSE_S, exclude_max=True), max_size=50))
def test_what_was_sent_before_a_probe_was_due_does_not_lengthen_the_pause(began: list[float]) -> None:
    """A burst that fails when the breaker is open already, or requests that have no other lane."""
    breaker = opened()
    for began_s in began:
        breaker.begins(began_s)
        breaker.failed(began_s, 0.9)
    assert breaker.lets_pass(FIRST_PAUSE_S) and breaker.num_opened == 1


def test_what_was_sent_before_it_opened_does_not_close_it() -> None:
    """A long answer that began when the lane was well says nothing of it now; what was sent since then does."""
    breaker = Breaker()
    for _ in range(MAX_FAILURES):
        breaker.failed(1.0, 2.0)
    breaker.succeeded(1.5)
    assert breaker.is_open and not breaker.lets_pass(2.0)
    assert breaker.to_wire(2.0)["num_failures"] == MAX_FAILURES
    breaker.succeeded(2.1)
    assert not breaker.is_open
