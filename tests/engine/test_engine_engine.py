"""Whole engine steps on a chain with a known law: exact laws, invariance, limits and cancellation."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from markov import ALPHABET, chain_law, write_markov_checkpoint
from outrider.core import SpecStats
from outrider.engine.attention.choice import attention_for, sdpa_on
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.placement import Placement
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.errors import ContextLengthExceeded
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.target import SamplingLaw

#: A prompt in which every pair of the four tokens occurs, so that look-up nearly always proposes something.
PROMPT = tuple(itertools.chain.from_iterable(itertools.product(range(4), repeat=2)))


def request(rid: str, plan: Plan, *, temperature: float = 1.0, seed: int = 0, tokens: int = 6) -> GenerateRequest:
    return GenerateRequest(rid, PROMPT, SamplingLaw(temperature), tokens, plan, seed)


def run(engine: Engine, requests: list[GenerateRequest]) -> dict[str, tuple[int, ...]]:
    """Run all requests to their end; emitted tokens by id."""
    tokens: dict[str, tuple[int, ...]] = {}
    for r in requests:
        engine.add(r)
    while engine.has_work:
        for output in engine.step():
            tokens[output.rid] = tokens.get(output.rid, ()) + output.token_ids
    return tokens


@pytest.fixture
def engine(toy_folder: Path) -> Engine:
    return Engine(
        toy_folder,
        EngineLimits(
            max_running=64, max_total_tokens=8192, context_length=512, max_prefill_rows=2048, max_step_rows=4096
        ),
    )


def test_greedy_tokens_are_the_chain_s_own(engine: Engine, chain: np.ndarray) -> None:
    """Each token is the likeliest successor of the one before, with every plan."""
    expected = []
    state = PROMPT[-1]
    for _ in range(20):
        state = int(chain[state].argmax())
        expected.append(state)
    plans = [PLAN_OFF, *(Plan("ngram", k) for k in (1, 2, 4, 8, 16))]
    tokens = run(engine, [request(str(i), plan, temperature=0.0, tokens=20) for i, plan in enumerate(plans)])
    assert all(list(tokens[str(i)]) == expected for i in range(len(plans)))


@pytest.mark.parametrize("temperature", [0.8, 1.2])
@pytest.mark.parametrize("plan", [PLAN_OFF, Plan("ngram", 3), Plan("suffix", 4)], ids=["off", "chain", "tree"])
def test_the_joint_law_of_sampled_tokens(engine: Engine, chain: np.ndarray, temperature: float, plan: Plan) -> None:
    """G-test of three successive tokens against the closed form; bounds hold for six cases together."""
    num_samples = 6000
    seeds = range(1000 * plan.k, 1000 * plan.k + num_samples)
    tokens = run(engine, [request(str(s), plan, temperature=temperature, seed=s, tokens=3) for s in seeds])
    counts = Counter(tokens.values())
    law = chain_law(chain, temperature)
    cells = list(itertools.product(range(4), repeat=3))
    expected = [law[PROMPT[-1], a] * law[a, b] * law[b, c] * num_samples for a, b, c in cells]
    observed = [counts[cell] for cell in cells]
    assert sum(observed) == num_samples, "a token outside the chain was emitted"
    g_test = stats.power_divergence(observed, expected, lambda_="log-likelihood")
    assert g_test.pvalue > 1e-3 / 6, g_test


def test_speculation_proposes_and_accepts_in_the_law_test(engine: Engine) -> None:
    """The test above would say nothing if drafts were never proposed, accepted and rejected."""
    for s in range(200):
        engine.add(request(str(s), Plan("ngram", 3), seed=s, tokens=12))
    stats_seen = []
    while engine.has_work:
        stats_seen += [output.stats for output in engine.step() if output.stats]
    proposed = sum(s.num_proposed or 0 for s in stats_seen)
    accepted = sum(s.num_accepted for s in stats_seen)
    assert 0.05 * proposed < accepted < 0.9 * proposed


def test_off_reports_no_verification(engine: Engine) -> None:
    """A request that is not speculated has no statistics at all, and a speculated one satisfies the identities."""
    last = {}
    for rid, plan in (("off", PLAN_OFF), ("on", Plan("ngram", 4))):
        engine.add(request(rid, plan, tokens=40))
    while engine.has_work:
        last |= {output.rid: output for output in engine.step()}
    assert last["off"].stats is None
    on = last["on"].stats
    assert on is not None and sum(on.histogram) == on.num_verify_steps
    assert 1 + on.num_verify_steps + on.num_accepted >= 40


def test_more_requests_than_slots_all_end(toy_folder: Path) -> None:
    """Waiting requests start as others end, and all memory comes back."""
    engine = Engine(toy_folder, EngineLimits(max_running=3, max_total_tokens=512, context_length=256))
    tokens = run(engine, [request(str(i), Plan("ngram", i % 4 + 1), seed=i, tokens=5 + i) for i in range(20)])
    assert [len(tokens[str(i)]) for i in range(20)] == [5 + i for i in range(20)]
    assert engine.pool.num_used_tokens == 0


def test_a_prompt_longer_than_a_chunk_is_read_in_parts(toy_folder: Path, engine: Engine) -> None:
    """Prompt rows per step are limited, and the answer does not depend on the limit."""
    small = Engine(toy_folder, EngineLimits(max_running=4, max_total_tokens=2048, max_prefill_rows=7))
    small.add(request("a", PLAN_OFF, seed=5))
    small.add(request("b", PLAN_OFF, seed=6))
    work = small.scheduler.schedule()
    assert sum(len(w.token_ids) for w in work) == 7
    small.abort("a", Finish("abort"))
    small.abort("b", Finish("abort"))
    both = [request("a", PLAN_OFF, seed=5), request("b", Plan("ngram", 2), seed=6)]
    assert run(small, both) == run(engine, both)


@pytest.mark.parametrize("num_steps", [0, 1, 5], ids=["waiting", "prefilling", "decoding"])
def test_an_aborted_request_frees_everything_at_once(toy_folder: Path, num_steps: int) -> None:
    """Whatever it was doing: slot and memory are free before the next step, and others go on."""
    engine = Engine(toy_folder, EngineLimits(max_running=2, max_total_tokens=1024, max_prefill_rows=20))
    for rid in ("a", "b"):
        engine.add(request(rid, Plan("ngram", 2), tokens=50))
    for _ in range(num_steps):
        engine.step()
    output = engine.abort("a", Finish("abort", message="gone", status=499))
    assert output is not None and output.finish is not None and output.finish.kind == "abort"
    assert "a" not in [s.request.rid for s in engine.scheduler]
    assert len(run(engine, [])["b"]) <= 50
    assert engine.pool.num_used_tokens == 0


def test_abort_matches_the_whole_id(engine: Engine) -> None:
    """An id that begins another id leaves the other alone."""
    engine.add(request("job-10", PLAN_OFF))
    assert engine.abort("job-1", Finish("abort")) is None
    assert len(run(engine, [])["job-10"]) == 6


def test_an_answer_that_does_not_fit_is_refused(engine: Engine) -> None:
    """The error says how many tokens there are and how many fit."""
    with pytest.raises(
        ContextLengthExceeded, match="32 tokens and up to 500 were asked for, but the context holds 512"
    ):
        engine.check(request("a", PLAN_OFF, tokens=500), "prompt")


def test_stop_token_and_stop_string_cut_inside_an_accepted_run(engine: Engine, chain: np.ndarray) -> None:
    """Tokens after the one that ends the answer are not emitted, although they were accepted."""
    greedy = run(engine, [request("g", PLAN_OFF, temperature=0.0, tokens=20)])["g"]
    text = "".join(ALPHABET[t] for t in greedy)
    law = SamplingLaw(0.0)
    by_token = GenerateRequest("t", PROMPT, law, 20, Plan("ngram", 8), 0, stop_token_ids=frozenset({greedy[7]}))
    by_string = GenerateRequest("s", PROMPT, law, 20, Plan("ngram", 8), 0, stop=(text[5:8],))
    engine.add(by_token)
    engine.add(by_string)
    texts, finish, count = {"t": "", "s": ""}, {}, {"t": 0, "s": 0}
    while engine.has_work:
        for output in engine.step():
            texts[output.rid] += output.text
            count[output.rid] += len(output.token_ids)
            finish[output.rid] = output.finish
    first = greedy.index(greedy[7])
    assert (count["t"], texts["t"]) == (first + 1, text[:first])
    assert finish["t"].matched == greedy[7]
    assert texts["s"] == text[: text.index(text[5:8])]
    assert finish["s"].matched == text[5:8]


def test_drafts_behind_the_end_of_an_answer_count_as_wasted(engine: Engine) -> None:
    """A whole prediction is right, but the answer stops in it: accepted are the drafts that were emitted."""
    plain = run(engine, [request("plain", PLAN_OFF, seed=3, tokens=20)])["plain"]
    num_drafts = max(map(plain.index, plain))
    stopped = dataclasses.replace(
        request("stopped", Plan("prediction", 8), seed=3, tokens=20),
        prediction_ids=plain,
        stop_token_ids=frozenset(plain[num_drafts : num_drafts + 1]),
    )
    engine.add(stopped)
    (last,) = engine.step()
    while last.finish is None:
        last = last.merged(*engine.step())
    assert last.token_ids == plain[: num_drafts + 1] and 0 < num_drafts < 8, plain
    counts = (*[0] * num_drafts, 1), 8, (1,) * num_drafts
    assert last.stats == SpecStats(1, num_drafts, *counts)


def test_no_draft_reaches_past_the_last_token(engine: Engine) -> None:
    """With a prediction that is right to its end: as many drafts as may stand before the target's own last token."""
    plain = run(engine, [request("plain", PLAN_OFF, seed=3)])["plain"]
    engine.add(dataclasses.replace(request("right", Plan("prediction", 8), seed=3), prediction_ids=(*plain, 0, 1)))
    (last,) = engine.step()
    while last.finish is None:
        last = last.merged(*engine.step())
    assert last.token_ids == plain and last.stats == SpecStats(1, 4, (0, 0, 0, 0, 1), 4, (1, 1, 1, 1))


def test_near_ties_name_their_positions(tmp_path: Path) -> None:
    """Where two successors are equally likely every token is one; positions are those of the output, in any plan."""
    tied = np.full((64, 64), -1e4)
    tied[:, :2] = 0.0
    write_markov_checkpoint(tmp_path / "tied", tied)
    engine = Engine(tmp_path / "tied", EngineLimits(max_total_tokens=1024, context_length=128))
    for plan in (PLAN_OFF, Plan("ngram", 4)):
        engine.add(GenerateRequest("a", (0, 0, 0, 0), SamplingLaw(0.0), 10, plan, 0))
        positions: tuple[int, ...] = ()
        while engine.has_work:
            for output in engine.step():
                positions += output.near_ties or ()
        assert positions == tuple(range(10))
    # What was accepted behind the end was never emitted, and is no tie of the answer.
    stopped = GenerateRequest("b", (0,), SamplingLaw(0.0), 10, Plan("prediction", 8), 0, stop=("AAA",))
    engine.add(dataclasses.replace(stopped, prediction_ids=(0,) * 10))
    (last,) = engine.step()
    while last.finish is None:
        last = last.merged(*engine.step())
    assert last.stats is not None and last.stats.num_accepted == 2
    assert last.near_ties == tuple(range(len(last.token_ids))) == (0, 1, 2)


def test_near_ties_are_unknown_where_nothing_tells_them(toy_folder: Path) -> None:
    """After rejection, and of a model that computes in bfloat16; sample and match in float32 knows them."""
    half = partial(sdpa_on, placement=Placement(torch.device("cpu"), torch.bfloat16))
    limits = EngineLimits(max_total_tokens=512)
    layers = Plan("layer_skip", 2)
    for attention_of, plan, is_seeded, is_known in (
        (attention_for, layers, False, False),
        (attention_for, layers, True, True),
        (attention_for, Plan("ngram", 2), False, True),
        (half, PLAN_OFF, True, False),
    ):
        engine = Engine(toy_folder, limits, attention_of=attention_of)
        engine.add(dataclasses.replace(request("a", plan, tokens=4), is_seeded=is_seeded))
        (last,) = engine.step()
        while last.finish is None:
            last = last.merged(*engine.step())
        assert (last.near_ties is not None) == is_known, (plan, is_seeded)
