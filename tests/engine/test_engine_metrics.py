"""What the engine's metrics and answers say about drafters that failed, and about near ties."""

from __future__ import annotations

import pytest

from outrider.engine.engine import Output
from outrider.engine.generate_replies import generate_body
from outrider.engine.loop import EngineLoad
from outrider.engine.metrics import EngineMetrics
from outrider.engine.protocol import Parsed
from outrider.engine.replies import Answer
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.policy.plan import Plan
from outrider.speculation.target import SamplingLaw


def test_failures_are_added_up() -> None:
    """The counter sums over requests."""
    metrics = EngineMetrics()
    for failures in (0, 1, 1):
        metrics.observe(Output("a", "", (), Finish("length"), None, failures))
    assert b"outrider:drafter_failures_total 2.0" in metrics.render(EngineLoad())


def test_a_failure_stands_in_its_answer_and_only_there() -> None:
    """`meta_info` has the field when it is not zero."""
    request = GenerateRequest("a", (1,), SamplingLaw(), 3, Plan("ngram", 2), seed=0)
    for failures, expected in ((0, None), (1, 1)):
        answer = Answer(Parsed(request), "model")
        answer.add(Output("a", "x", (1,), Finish("length"), None, failures))
        assert generate_body(answer)["meta_info"].get("num_drafter_failures") == expected


def test_near_ties_are_added_up() -> None:
    """Over the steps of an answer, and over requests; an answer without any says so."""
    request = GenerateRequest("a", (1,), SamplingLaw(), 3, Plan("ngram", 2), seed=0)
    metrics, answer = EngineMetrics(), Answer(Parsed(request), "model")
    assert generate_body(answer)["meta_info"]["num_near_ties"] == 0
    steps = [Output("a", "x", (1,), near_ties=(0,)), Output("a", "y", (2, 3), Finish("length"), near_ties=(1, 2))]
    for output in (*steps, steps[0].merged(steps[1])):
        metrics.observe(output)
        answer.add(output)
    assert generate_body(answer)["meta_info"]["num_near_ties"] == 6
    assert b"outrider:near_ties_total 6.0" in metrics.render(EngineLoad())


@pytest.mark.parametrize("place", [0, 1])
def test_near_ties_of_which_a_part_is_unknown_are_unknown(place: int) -> None:
    """Which is not none: the answer says null, whichever of its steps had no telling."""
    known, unknown = Output("a", "x", (1,), near_ties=(0,)), Output("a", "y", (2,), near_ties=None)
    steps = (unknown, known) if place == 0 else (known, unknown)
    request = GenerateRequest("a", (1,), SamplingLaw(), 3, Plan("ngram", 2), seed=0)
    for outputs in (steps, (steps[0].merged(steps[1]),)):
        metrics, answer = EngineMetrics(), Answer(Parsed(request), "model")
        for output in outputs:
            answer.add(output)
            metrics.observe(output)
        assert generate_body(answer)["meta_info"]["num_near_ties"] is None
