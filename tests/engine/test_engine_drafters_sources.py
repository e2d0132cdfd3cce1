"""Every drafter in whole engine steps: the text never depends on the drafter, on k or on the company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from random_llama import write_random_llama

from markov import write_markov_checkpoint
from outrider.engine.drafters.layer_skip import write_skip
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits, Output
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.errors import InvalidRequest
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.target import SamplingLaw

#: What the embedded engine has.
DRAFTERS = ("ngram", "suffix", "prediction", "draft_model", "layer_skip")
LIMITS = EngineLimits(max_running=64, max_total_tokens=8192, context_length=256)
KS = (1, 2, 4, 8)
NUM_TOKENS = 40
PROMPTS = [tuple((7 * i * i + 3 * i + s) % 64 for i in range(20)) for s in range(2)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A random target of 8 layers, of which the stored set skips two, with a smaller draft model."""
    folder = tmp_path_factory.mktemp("llama")
    write_random_llama(folder / "target", num_layers=8)
    write_random_llama(folder / "draft", num_layers=1, seed=0)
    write_skip(folder / "set.json", 8, frozenset({3, 5}))
    return Engine(folder / "target", LIMITS, DraftOptions(folder / "draft", folder / "set.json"))


@pytest.fixture(scope="module")
def toy(toy_folder: Path, chain: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The toy chain with a draft model that follows a blurred copy of it."""
    folder = tmp_path_factory.mktemp("draft") / "markov"
    blurred = chain.copy()
    blurred[:, :4] *= 0.4
    write_markov_checkpoint(folder, blurred)
    return Engine(toy_folder, LIMITS, DraftOptions(folder))


def request(rid: str, prompt: tuple[int, ...], plan: Plan, law: SamplingLaw, guess: tuple[int, ...] | None = None):
    guess = guess if plan.drafter == "prediction" else None
    return GenerateRequest(rid, prompt, law, NUM_TOKENS, plan, seed=9, prediction_ids=guess)


def run(engine: Engine, requests: list[GenerateRequest]) -> tuple[dict[str, tuple[int, ...]], dict[str, Output]]:
    """Emitted tokens and last outputs by id."""
    tokens: dict[str, tuple[int, ...]] = {}
    last = {}
    for one in requests:
        engine.check(one, "prompt")
        engine.add(one)
    while engine.has_work:
        for output in engine.step():
            tokens[output.rid] = tokens.get(output.rid, ()) + output.token_ids
            last[output.rid] = output
    return tokens, last


@pytest.mark.parametrize("law", [SamplingLaw(0.0), SamplingLaw(0.9)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("target", ["toy", "llama"])
def test_the_text_is_the_same_with_every_drafter(
    request: pytest.FixtureRequest, target: str, law: SamplingLaw
) -> None:
    """All drafters with every k in one batch against each prompt alone without speculation; all draft, none fails."""
    engine: Engine = request.getfixturevalue(target)
    make = globals()["request"]
    prompts = [tuple(t % 4 for t in prompt) for prompt in PROMPTS] if target == "toy" else PROMPTS
    alone = [run(engine, [make("plain", prompt, PLAN_OFF, law)])[0]["plain"] for prompt in prompts]
    batch = [
        make(f"{i}/{name}/{k}", prompt, Plan(name, k), law, tuple(t if j % 7 else 1 for j, t in enumerate(alone[i])))
        for i, prompt in enumerate(prompts)
        for name in DRAFTERS
        for k in KS
    ]
    tokens, last = run(engine, batch)
    assert [rid for rid, found in tokens.items() if found != alone[int(rid[0])]] == []
    assert sum(output.num_drafter_failures for output in last.values()) == 0
    for name in set(DRAFTERS) - ({"ngram", "suffix"} if target == "llama" else set()):
        stats = [output.stats for rid, output in last.items() if f"/{name}/" in rid]
        assert sum(s.num_accepted for s in stats if s) > 0, name


def test_an_exact_draft_model_is_accepted_whole(toy_folder: Path) -> None:
    """The target as its own draft model: at temperature 0 every draft is accepted."""
    engine = Engine(toy_folder, LIMITS, DraftOptions(toy_folder))
    last = run(engine, [request("a", (0, 1, 2), Plan("draft_model", 4), SamplingLaw(0.0))])[1]["a"]
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


def salted(rid: str, salt: str, tokens: int = 30) -> GenerateRequest:
    return GenerateRequest(rid, (3, 1), SamplingLaw(1.0), tokens, Plan("suffix", 8), seed=4, cache_salt=salt)


def test_answers_teach_requests_of_their_own_salt(toy_folder: Path) -> None:
    """The same answer again is drafted well after it was given under the same salt, and as before under another."""
    engine = Engine(toy_folder, LIMITS)
    steps = {}
    for rid, salt in (("first", "a"), ("again", "a"), ("other", "b"), ("none", "")):
        stats = run(engine, [salted(rid, salt)])[1][rid].stats
        assert stats is not None
        steps[rid] = stats.num_verify_steps
    assert steps["again"] < steps["first"] == steps["other"] == steps["none"]


def test_an_aborted_answer_teaches_too(toy_folder: Path) -> None:
    """A drafter is freed however its request ends."""
    engine = Engine(toy_folder, LIMITS)
    engine.add(salted("gone", "a", tokens=200))
    for _ in range(40):
        engine.step()
    assert engine.abort("gone", Finish("abort")) is not None
    stats = run(engine, [salted("again", "a")])[1]["again"].stats
    fresh = run(engine, [salted("fresh", "b")])[1]["fresh"].stats
    assert stats and fresh and stats.num_verify_steps < fresh.num_verify_steps
