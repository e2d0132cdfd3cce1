"""Who runs when: reuse, preemption, fairness, budgets and deadlines, seen through whole engine steps."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.engine import Engine, EngineLimits, Output
from outrider.engine.kv_cache import BLOCK_SIZE
from outrider.engine.scheduler import shares
from outrider.engine.sequence import Finish, GenerateRequest, SequenceState
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.target import SamplingLaw

PROMPT = (0, 1, 2, 3, 0, 2, 1, 3, 3, 1, 0, 1, 2, 3, 0, 2, 1, 0, 3)


def plan(k: int) -> Plan:
    return Plan("ngram", k) if k else PLAN_OFF


def make_request(
    rid: str, prompt: tuple[int, ...] = PROMPT, *, k: int = 0, tokens: int = 40, **more: Any
) -> GenerateRequest:
    law = more.pop("law", SamplingLaw(0.0))
    return GenerateRequest(rid, prompt, law, tokens, plan(k), more.pop("seed", 0), **more)


def finish(engine: Engine, requests: list[GenerateRequest]) -> dict[str, Output]:
    """Run to the end, checking the pool after every step; one output per request with all its tokens."""
    for r in requests:
        engine.add(r)
    tokens: dict[str, tuple[int, ...]] = {}
    last: dict[str, Output] = {}
    while engine.has_work:
        for output in engine.step():
            tokens[output.rid] = tokens.get(output.rid, ()) + output.token_ids
            last[output.rid] = output
        engine.pool.check()
    assert engine.pool.num_used_tokens == 0
    return {rid: Output(rid, "", tokens[rid], o.finish, o.stats, num_cached=o.num_cached) for rid, o in last.items()}


def tokens_of(outputs: dict[str, Output]) -> dict[str, tuple[int, ...]]:
    return {rid: output.token_ids for rid, output in outputs.items()}


@pytest.mark.parametrize("k", [0, 4])
def test_preemption_and_reuse_change_no_token(attentive_folder: Path, k: int) -> None:
    """Six requests in a pool for two of them: the texts are those of an engine with room for all."""
    law = SamplingLaw(0.9)
    requests = [make_request(str(i), (*PROMPT, i % 3), k=k, tokens=50, law=law, seed=i) for i in range(6)]
    roomy = Engine(attentive_folder, EngineLimits(max_total_tokens=4096))
    tight = Engine(attentive_folder, EngineLimits(max_total_tokens=10 * BLOCK_SIZE, max_prefill_rows=9))
    expected = tokens_of(finish(roomy, requests))
    assert tokens_of(finish(tight, requests)) == expected
    assert (roomy.scheduler.num_preemptions, tight.scheduler.num_preemptions > 0) == (0, True)
    again = finish(roomy, requests)
    assert tokens_of(again) == expected and all(output.num_cached == BLOCK_SIZE for output in again.values())


def test_statistics_of_a_preempted_request_keep_their_identities(toy_folder: Path) -> None:
    """Reading a text again is no verification: one token comes from the prompt and all others from verify steps."""
    engine = Engine(toy_folder, EngineLimits(max_total_tokens=10 * BLOCK_SIZE))
    outputs = finish(engine, [make_request(str(i), k=4, tokens=60, law=SamplingLaw(1.0), seed=i) for i in range(4)])
    assert engine.scheduler.num_preemptions > 0
    for output in outputs.values():
        assert output.stats is not None
        emitted = 1 + output.stats.num_verify_steps + output.stats.num_accepted
        assert 60 <= emitted <= 60 + 4  # what was accepted beyond the last token is counted, and not emitted


def num_steps(engine: Engine, one: GenerateRequest) -> tuple[int, Output]:
    """Steps until the first token, and the whole answer."""
    engine.add(one)
    count = 1
    while not (first := engine.step()):
        count += 1
    rest = finish(engine, []) if engine.has_work else {}
    tokens = first[0].token_ids + (rest[one.rid].token_ids if rest else ())
    return count, Output(one.rid, "", tokens, num_cached=first[0].num_cached)


def test_the_next_turn_reads_only_what_is_new(attentive_folder: Path) -> None:
    """Prompt and generated text of the last turn are found again; the answer is that of reading it all."""
    limits = EngineLimits(max_total_tokens=1024, max_prefill_rows=8)
    engine, fresh = Engine(attentive_folder, limits), Engine(attentive_folder, limits)
    first = finish(engine, [make_request("1", tokens=45)])["1"]
    turn = (*PROMPT, *first.token_ids, 9, 8, 7)
    steps, answer = num_steps(engine, make_request("2", turn, k=4))
    all_steps, same = num_steps(fresh, make_request("2", turn))
    assert (answer.num_cached, same.num_cached) == (48, 0)  # the last full block of 19 + 44 computed positions
    assert (steps, all_steps) == (3, 9)
    assert answer.token_ids == same.token_ids
    other, _ = num_steps(engine, make_request("3", turn, cache_salt="other tenant"))
    assert other == all_steps


def test_a_running_request_shares_its_prompt(toy_folder: Path) -> None:
    """A newcomer need not wait for the end of the request that read the same text first."""
    engine = Engine(toy_folder, EngineLimits(max_total_tokens=1024))
    engine.add(make_request("first"))
    engine.step()
    outputs = finish(engine, [make_request("second"), make_request("apart", cache_salt="x")])
    assert (outputs["second"].num_cached, outputs["apart"].num_cached) == (BLOCK_SIZE, 0)


def test_more_requests_run_than_could_be_promised_room(toy_folder: Path) -> None:
    """A start needs the blocks of its text, not of the longest answer that was allowed."""
    engine = Engine(toy_folder, EngineLimits(max_total_tokens=16 * BLOCK_SIZE))
    for i in range(4):
        engine.add(make_request(str(i), tokens=200))
    engine.step()
    assert (engine.scheduler.num_running, engine.scheduler.num_waiting) == (4, 0)


def test_a_large_request_is_not_overtaken(toy_folder: Path) -> None:
    """Under a stream of small newcomers that would always fit, it starts before any that came later."""
    engine = Engine(toy_folder, EngineLimits(max_total_tokens=12 * BLOCK_SIZE, max_running=4))
    for i in range(3):
        engine.add(make_request(f"early{i}", tokens=30))
    engine.step()
    engine.add(make_request("large", PROMPT * 8, tokens=8))
    order: list[str] = []
    for i in range(120):
        engine.add(make_request(f"late{i}", tokens=8))
        order += [output.rid for output in engine.step() if output.rid not in order]
    assert order.index("large") < min(order.index(rid) for rid in order if rid.startswith("late"))
    ended = finish(engine, [])
    assert all(output.finish is not None for output in ended.values())


def test_the_newest_is_preempted_and_comes_back_first(toy_folder: Path) -> None:
    """The oldest never loses its place, and arrivals stay in order in both queues together."""
    engine = Engine(toy_folder, EngineLimits(max_total_tokens=8 * BLOCK_SIZE))
    rids = [str(i) for i in range(5)]
    for rid in rids:
        engine.add(make_request(rid, tokens=80))
    while engine.scheduler.num_preemptions < 4:
        engine.step()
        left = [s.request.rid for s in engine.scheduler]
        assert left == rids[-len(left) :]
        assert next(s for s in engine.scheduler).state is not SequenceState.WAITING or left != rids
    assert len(finish(engine, [])) >= 3


def test_drafts_give_way_to_prompts(toy_folder: Path) -> None:
    """Over budget, drafts are cut evenly from behind; prompt rows and one row of each request are always there."""
    engine = Engine(toy_folder, EngineLimits(max_total_tokens=2048, max_prefill_rows=6, max_step_rows=15))
    for i in range(3):
        engine.add(make_request(str(i), PROMPT * 2, k=8, tokens=100))
    while any(s.state is not SequenceState.DECODING for s in engine.scheduler):
        engine.step()
    engine.add(make_request("prompt", (3, 2, 1) * 10, tokens=5))
    work = engine.scheduler.schedule()
    assert [len(w.proposal) for w in work] == [2, 2, 2, 0]
    assert [len(w.token_ids) for w in work] == [3, 3, 3, 6]
    finish(engine, [])


@given(st.lists(st.integers(0, 20), max_size=8), st.integers(0, 60))
def test_shares_are_even(wanted: list[int], budget: int) -> None:
    """The budget is used as far as anybody wants it, and who gets less than he wants has no less than others."""
    given_ = shares(wanted, budget)
    assert sum(given_) == min(sum(wanted), budget)
    assert all(got <= want for got, want in zip(given_, wanted, strict=True))
    cut = [got for got, want in zip(given_, wanted, strict=True) if got < want]
    assert not cut or min(cut) >= max(given_) - 1


def test_a_deadline_ends_a_waiting_and_a_running_request(toy_folder: Path) -> None:
    """Both end with 408, what they held is free, and a request with time left goes on."""
    engine = Engine(toy_folder, EngineLimits(max_running=1, max_total_tokens=1024))
    engine.add(make_request("running", tokens=1000, deadline_s=20.0))
    engine.add(make_request("patient", tokens=5, deadline_s=1000.0))
    engine.add(make_request("waiting", deadline_s=20.0))
    outputs, seconds = {}, count()
    while engine.has_work:
        ended_or_emitted = engine.expire(float(next(seconds))) + engine.step()
        outputs.update({output.rid: output for output in ended_or_emitted})
    assert outputs["patient"].finish == Finish("length")
    for rid in ("running", "waiting"):
        ended = outputs[rid].finish
        assert ended is not None and (ended.kind, ended.status) == ("abort", 408)
    assert engine.pool.num_used_tokens == 0


def test_a_request_whose_time_is_up_is_never_started(toy_folder: Path) -> None:
    """Not a row is computed for it."""
    engine = Engine(toy_folder, EngineLimits(max_total_tokens=1024))
    engine.add(make_request("late", deadline_s=20.0))
    assert [output.token_ids for output in engine.expire(20.0)] == [()]
    assert not engine.has_work


@pytest.mark.parametrize(
    "state", ["waiting", "prefilling", "decoding", "preempted", "reading again"], ids=lambda name: name
)
def test_an_abort_in_any_state_frees_everything(toy_folder: Path, state: str) -> None:
    """The last of three requests is aborted in each state; the others' tokens are unharmed."""
    limits = EngineLimits(max_total_tokens=8 * BLOCK_SIZE, max_prefill_rows=1)
    alone = tokens_of(
        finish(Engine(toy_folder, limits), [make_request("a", tokens=70), make_request("b", tokens=70)])
    )
    engine = Engine(toy_folder, limits)
    for rid, prompt in (("a", PROMPT), ("b", PROMPT), ("c", PROMPT[:9])):
        engine.add(make_request(rid, prompt, tokens=70))
    *_, victim = engine.scheduler
    is_there = {
        "waiting": lambda: victim.state is SequenceState.WAITING,
        "prefilling": lambda: victim.state is SequenceState.PREFILLING,
        "decoding": lambda: victim.state is SequenceState.DECODING,
        "preempted": lambda: victim.num_output and victim.state is SequenceState.WAITING,
        "reading again": lambda: victim.num_output and victim.state is SequenceState.PREFILLING,
    }[state]
    tokens: dict[str, tuple[int, ...]] = {}
    while not is_there():
        assert engine.has_work
        for output in engine.step():
            tokens[output.rid] = tokens.get(output.rid, ()) + output.token_ids
    held = engine.pool.num_used_tokens
    assert engine.abort("c", Finish("abort")) is not None and victim.cache is None
    engine.pool.check()
    assert (engine.pool.num_used_tokens < held) is (state in ("prefilling", "decoding", "reading again"))
    for rid, output in finish(engine, []).items():
        tokens[rid] = tokens.get(rid, ()) + output.token_ids
    tokens.pop("c", None)
    assert tokens == alone
