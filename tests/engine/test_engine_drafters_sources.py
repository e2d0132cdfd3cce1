"""Which drafters an engine offers, what they need, and what they learn from each other's answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits, Output
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.errors import InvalidRequest
from outrider.policy.plan import Plan
from outrider.speculation.target import SamplingLaw

#: What the embedded engine has.
DRAFTERS = ("ngram", "suffix", "prediction", "draft_model", "layer_skip")
LIMITS = EngineLimits(max_running=64, max_total_tokens=8192, context_length=256)
NUM_TOKENS = 40


def request(rid: str, prompt: tuple[int, ...], plan: Plan, law: SamplingLaw) -> GenerateRequest:
    return GenerateRequest(rid, prompt, law, NUM_TOKENS, plan, seed=9)


def last_output(engine: Engine, one: GenerateRequest) -> Output:
    """Run a request alone to its end."""
    engine.check(one, "prompt")
    engine.add(one)
    while engine.has_work:
        outputs = engine.step()
    return outputs[-1]


def test_an_exact_draft_model_is_accepted_whole(toy_folder: Path) -> None:
    """The target as its own draft model: at temperature 0 every draft is accepted."""
    engine = Engine(toy_folder, LIMITS, DraftOptions(toy_folder))
    last = last_output(engine, request("a", (0, 1, 2), Plan("draft_model", 4), SamplingLaw(0.0)))
    assert last.stats is not None and last.stats.num_accepted == last.stats.num_proposed


def test_what_cannot_run_here_is_refused(toy_folder: Path) -> None:
    """A draft model that was not given, and a prediction that is not there."""
    engine = Engine(toy_folder, LIMITS)
    assert set(engine.drafters.makers) == set(DRAFTERS) - {"draft_model"}
    with pytest.raises(InvalidRequest, match="no drafter 'draft_model'") as refused:
        engine.check(request("a", (0, 1), Plan("draft_model", 2), SamplingLaw()), "prompt")
    assert refused.value.param == "custom_params.outrider"
    with pytest.raises(InvalidRequest, match="the request has none") as refused:
        engine.check(request("a", (0, 1), Plan("prediction", 2), SamplingLaw()), "prompt")
    assert refused.value.param == "prediction"


def salted(rid: str, salt: str, tokens: int = 30, *, learn: bool = True) -> GenerateRequest:
    plan = Plan("suffix", 8, learn)
    return GenerateRequest(rid, (3, 1), SamplingLaw(1.0), tokens, plan, seed=4, cache_salt=salt)


def test_answers_teach_requests_of_their_own_salt(toy_folder: Path) -> None:
    """The same answer again is drafted well after it was given under the same salt, and as before under another."""
    engine = Engine(toy_folder, LIMITS)
    steps = {}
    for rid, salt in (("first", "a"), ("again", "a"), ("other", "b"), ("none", "")):
        stats = last_output(engine, salted(rid, salt)).stats
        assert stats is not None
        steps[rid] = stats.num_verify_steps
    assert steps["again"] < steps["first"] == steps["other"] == steps["none"]


def test_a_plan_that_does_not_learn_neither_reads_nor_teaches(toy_folder: Path) -> None:
    """Under one salt, answers of such plans are unknown to later requests, and such plans know none."""
    engine = Engine(toy_folder, LIMITS)
    steps = []
    for number, learn in enumerate((False, True, False, True)):
        stats = last_output(engine, salted(str(number), "a", learn=learn)).stats
        assert stats is not None
        steps.append(stats.num_verify_steps)
    assert steps[0] == steps[1] == steps[2] > steps[3]


def test_an_aborted_answer_teaches_too(toy_folder: Path) -> None:
    """A drafter is freed however its request ends."""
    engine = Engine(toy_folder, LIMITS)
    engine.add(salted("gone", "a", tokens=200))
    for _ in range(40):
        engine.step()
    assert engine.abort("gone", Finish("abort")) is not None
    stats = last_output(engine, salted("again", "a")).stats
    fresh = last_output(engine, salted("fresh", "b")).stats
    assert stats and fresh and stats.num_verify_steps < fresh.num_verify_steps
