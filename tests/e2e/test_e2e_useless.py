"""Drafts that are never accepted, on the real engine and the real model: what the policy lets them cost."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pytest

from outrider.cli.bench.closed_loop import Useless
from outrider.config import packaged_data
from outrider.core import Hints, LaneAbility, LaneLoad, LaneView, SpecStats
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.sequence import GenerateRequest
from outrider.policy.features import Features, extract_features
from outrider.policy.learning import MAX_SLOWDOWN, Feedback
from outrider.policy.loader import Source, load_policies
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.target import SamplingLaw
from outrider.workloads.suite import load_prompts

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

NUM_REQUESTS, NUM_TOKENS = 80, 13


@dataclass
class Answer:
    token_ids: tuple[int, ...] = ()
    stats: SpecStats | None = None
    round_s: list[float] = field(default_factory=list)
    """CPU seconds of each round behind the first token."""


def answer(engine: Engine, rid: str, text: str, plan: Plan) -> Answer:
    ids = tuple(engine.tokenizer.encode_chat([{"role": "user", "content": text}]))
    useless = Useless(engine.tokenizer.vocab_size - 1)
    drafter = None if plan.is_off else GuardedDrafter(lambda: useless, engine.model.config.vocab_size)
    engine.add(GenerateRequest(rid, ids, SamplingLaw(0.0), NUM_TOKENS, plan, 7), drafter)
    found = Answer()
    while engine.has_work:
        began_s, is_decoding = time.process_time(), bool(found.token_ids)
        for output in engine.step():
            found.token_ids += output.token_ids
            found.stats = output.stats or found.stats
        if is_decoding:
            found.round_s.append(time.process_time() - began_s)
    return found


def asked(text: str) -> Features:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": NUM_TOKENS}
    return extract_features(body, Hints())


def test_useless_drafts_cost_at_most_five_percent_over_plain(model_folder: Path) -> None:
    """Of short answers to requests for code, of which much is expected, learning and tries included.

    What a request with drafts costs is the ratio of its median round to that of the same request without any, right
    after it, by CPU time, which is blurred least by what else the machine does; a plain one costs nothing. Of plain
    ones every fourth is run, and teaches for the others too.
    """
    engine = Engine(model_folder, EngineLimits())
    policies = load_policies(Source([packaged_data("policies")]))
    ability = LaneAbility.embedded("real", tuple(engine.drafters.makers))
    prompts = load_prompts(packaged_data("workloads") / "tasks.yaml")
    texts = [prompt.text for prompt in prompts if prompt.task == "code"]
    ks: list[int] = []
    num_rounds, extra = 0, 0.0
    plain = answer(engine, "first", texts[0], PLAN_OFF)
    for i in range(NUM_REQUESTS):
        text = texts[i % len(texts)]
        view = LaneView(ability, LaneLoad(0, 0, ability.max_running, float(i)))
        decision = policies.decide(asked(text), Hints(), [view], float(i))
        is_known = decision.plan.is_off and i % 4
        found = plain if is_known else answer(engine, f"{i}", text, decision.plan)
        policies.learn(decision, Feedback(found.stats, len(found.token_ids), sum(found.round_s)))
        ks.append(decision.plan.k)
        num_rounds += len(found.round_s)
        if decision.plan.k:
            plain = answer(engine, f"{i}/plain", text, PLAN_OFF)
            assert found.stats is not None and found.stats.num_accepted == 0
            assert found.token_ids == plain.token_ids and len(found.round_s) == len(plain.round_s) == NUM_TOKENS - 1
            extra += len(found.round_s) * (median(found.round_s) / median(plain.round_s) - 1)
        else:
            plain = found
    assert any(ks), "drafts that never ran cost nothing"
    assert extra <= MAX_SLOWDOWN * num_rounds, (extra / num_rounds, ks)
