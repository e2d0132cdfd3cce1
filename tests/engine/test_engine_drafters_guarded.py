"""Faults in drafters: each ends drafting for its request, is counted, and changes nothing else."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from outrider.engine.drafters import Drafter
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.drafters.ngram import NgramDrafter
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.sequence import GenerateRequest, Sequence
from outrider.engine.stops import StopStrings
from outrider.engine.tokenizer import Detokenizer
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.proposal import PointMass, Proposal, SampledChain, SampledTree, TopKTree
from outrider.speculation.target import SamplingLaw

VOCAB = 64
PROMPT = (0, 1, 2, 3, 0, 1, 2, 3, 0, 1)
ONE_TOKEN = PointMass((1,))


class FaultyDrafter:
    """A drafter in which one call fails, the `after`-th of its kind."""

    def __init__(self, where: str, after: int = 0, answer: Proposal = ONE_TOKEN) -> None:
        self._where, self._left = where, after
        self._answer = answer
        self.num_freed = 0
        self._call("make")

    def _call(self, where: str) -> None:
        if where == self._where:
            self._left -= 1
            if self._left < 0:
                raise torch.OutOfMemoryError(f"no room to {where}")

    def observe(self, token_id: int) -> None:
        self._call("observe")

    def propose(self, k: int) -> Proposal:
        self._call("propose")
        return self._answer

    def free(self) -> None:
        self.num_freed += 1
        self._call("free")


@pytest.mark.parametrize("where", ["make", "observe", "propose", "free"])
def test_a_fault_is_counted_and_ends_drafting(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """Wherever it happens, nothing is raised, and it can be read in the log."""
    drafter = GuardedDrafter(lambda: FaultyDrafter(where), VOCAB)
    drafter.propose(2)
    drafter.observe(1)
    drafter.free()
    assert drafter.num_failures == 1
    assert drafter.propose(2) == PointMass(())
    assert "no room" in caplog.text


def test_a_failed_drafter_is_freed_once() -> None:
    """What it holds is given back at once, and not again at the end of the request."""
    inner = FaultyDrafter("propose")
    drafter = GuardedDrafter(lambda: inner, VOCAB)
    drafter.propose(1)
    drafter.free()
    assert inner.num_freed == 1


def law_of(**probs: float) -> torch.Tensor:
    """[1, VOCAB]: probabilities by token, `t1` for token 1."""
    law = torch.zeros(1, VOCAB, dtype=torch.float64)
    for name, value in probs.items():
        law[0, int(name[1:])] = value
    return law


WRONG: dict[str, Proposal] = {
    "too many": PointMass((1, 2, 3)),
    "beyond": PointMass((VOCAB,)),
    "negative": PointMass((-1,)),
    "impossible": SampledChain((1,), law_of(t2=1.0)),
    "not a number": SampledChain((1,), law_of(t1=math.nan)),
    "too heavy": SampledChain((1,), law_of(t1=1.0, t2=0.5)),
    "another vocabulary": SampledChain((1,), law_of(t1=1.0)[:, :-1]),
    "a twin": SampledTree((1, 1), (-1, -1), law_of(t1=0.5, t2=0.5).expand(3, -1)),
    "likelier than the one before": PointMass((1, 2), (0.5, 0.6)),
    "no chance": TopKTree((1, 2), (-1, -1), (0.5, math.nan)),
    "likelier than its parent": TopKTree((1, 2), (-1, 0), (0.5, 0.6)),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_a_proposal_that_the_step_could_not_take_is_a_fault(answer: Proposal) -> None:
    """A wrong token would fail the step of every request in it, and a wrong law would fail it or bend the text's."""
    drafter = GuardedDrafter(lambda: FaultyDrafter("nowhere", answer=answer), VOCAB)
    assert drafter.propose(2) == PointMass(())
    assert drafter.num_failures == 1


def test_no_room_for_drafts_asks_nobody() -> None:
    """With k 0 the drafter is not called."""
    drafter = GuardedDrafter(lambda: FaultyDrafter("propose"), VOCAB)
    assert drafter.propose(0) == PointMass(())
    assert drafter.num_failures == 0


def sequence(engine: Engine, rid: str, make: Callable[[], Drafter]) -> Sequence:
    request = GenerateRequest(rid, PROMPT, SamplingLaw(1.0), 30, Plan("ngram", 3), seed=5, is_seeded=False)
    drafter = GuardedDrafter(make, VOCAB)
    return Sequence(request, Detokenizer(engine.tokenizer), StopStrings(()), drafter)


def test_requests_go_on_without_the_drafter(toy_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In one batch: each faulty request has the text of a plain one, its failure stands in its last output."""
    caplog.set_level(logging.CRITICAL)
    engine = Engine(toy_folder, EngineLimits(max_total_tokens=1024, context_length=128))
    engine.add(GenerateRequest("plain", PROMPT, SamplingLaw(1.0), 30, PLAN_OFF, seed=5, is_seeded=False))
    faults: dict[str, Callable[[], Drafter]] = {
        "make": lambda: FaultyDrafter("make"),
        "observe": lambda: FaultyDrafter("observe", 7),
        "propose": lambda: FaultyDrafter("propose", 4),
        "token": lambda: FaultyDrafter("nowhere", answer=PointMass((10**9,))),
        "law": lambda: FaultyDrafter("nowhere", answer=WRONG["impossible"]),
        "sound": lambda: NgramDrafter(PROMPT),
    }
    for rid, make in faults.items():
        engine.scheduler.add(sequence(engine, rid, make))
    tokens: dict[str, tuple[int, ...]] = {}
    failures = {}
    while engine.has_work:
        for output in engine.step():
            tokens[output.rid] = tokens.get(output.rid, ()) + output.token_ids
            if output.finish is not None:
                failures[output.rid] = output.num_drafter_failures
    assert len(tokens["plain"]) == 30 and set(tokens.values()) == {tokens["plain"]}
    assert failures == {"plain": 0, "sound": 0, **dict.fromkeys(("make", "observe", "propose", "token", "law"), 1)}
