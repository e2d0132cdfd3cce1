"""What the engine's metrics and answers say about drafters that failed."""

from __future__ import annotations

from outrider.engine.engine import Output
from outrider.engine.loop import EngineLoad
from outrider.engine.metrics import EngineMetrics
from outrider.engine.protocol import Parsed
from outrider.engine.replies import Answer, generate_body
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
