"""The shipped policies before an engine in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cli.bench.decider import Decider
from outrider.cli.bench.ours import EngineArm
from outrider.cli.bench.samples import Case
from outrider.core import SpecStats
from outrider.policy.learning import Feedback


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


def test_what_is_learnt_changes_decisions(ours: EngineArm) -> None:
    """Drafts that are never accepted, at rounds twice as long as plain ones, are given up."""
    decider, case = Decider(ours), Case("q", "quote", "Quote this text back, word for word: one two three.", 0.0)
    assert not decider.decide(case).plan.is_off
    for _ in range(12):
        decision = decider.decide(case)
        if not decision.plan.is_off:
            stats = SpecStats(40, 0, (40,), 40 * decision.plan.k)
            decider.learn(decision, Feedback(stats, 41, 80 * decision.plain_round_s()))
    assert decider.decide(case).plan.is_off
