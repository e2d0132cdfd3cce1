"""The shipped policies before an engine in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cli.bench.ours import EngineArm
from outrider.cli.bench.samples import Case


@pytest.fixture(scope="module")
def ours(toy_folder: Path) -> EngineArm:
    return EngineArm(toy_folder)


def test_a_decision_is_that_of_the_shipped_policies(ours: EngineArm) -> None:
    """A quote is drafted for, hot creative text is not; the task is guessed from the text alone."""
    quote = ours.decider.decide(Case("q", "chat", "Quote this text back, word for word: one two three.", 0.0))
    poem = ours.decider.decide(Case("p", "quote", "Write a poem about the sea.", 1.2))
    assert (quote.workload, quote.plan.is_off) == ("extract", False)
    assert (poem.workload, poem.plan.is_off) == ("creative", True)


def test_load_counts(ours: EngineArm) -> None:
    """Beside eleven others fewer drafts pay."""
    case = Case("c", "code", "Write a Python class Stack with push and pop.", 0.0)
    alone, beside = ours.decider.decide(case), ours.decider.decide(case, 11)
    assert beside.option.seen.num_running == 12
    assert beside.plan.k < alone.plan.k
