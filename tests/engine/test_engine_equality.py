"""Greedy text on the real model does not depend on drafter, k or batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.config import packaged_data
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.sequence import GenerateRequest
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.target import SamplingLaw
from outrider.workloads.prompts import load_prompts

NUM_TOKENS = 48
KS = (1, 2, 4, 8, 16)


def run(engine: Engine, requests: list[GenerateRequest]) -> tuple[dict[str, str], int]:
    """Texts by id, and how many draft tokens were accepted."""
    texts: dict[str, str] = {}
    num_accepted = 0
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step():
            texts[output.rid] = texts.get(output.rid, "") + output.text
            num_accepted += output.stats.num_accepted if output.stats else 0
    return texts, num_accepted


@pytest.mark.model
@pytest.mark.timeout(600)
def test_greedy_text_is_the_same_with_any_drafter_and_k(model_folder: Path) -> None:
    """Twenty prompts of mixed kinds: alone without speculation, and together with every k in one batch."""
    engine = Engine(model_folder, EngineLimits(max_running=16))
    prompts = load_prompts(packaged_data("workloads") / "tasks.yaml")
    assert len(prompts) == 20
    eos = frozenset(engine.model.config.eos_token_ids)

    def request(rid: str, text: str, plan: Plan) -> GenerateRequest:
        ids = tuple(engine.tokenizer.encode_chat([{"role": "user", "content": text}]))
        return GenerateRequest(rid, ids, SamplingLaw(0.0), NUM_TOKENS, plan, 0, (), eos)

    alone = {p.name: run(engine, [request(p.name, p.text, PLAN_OFF)])[0][p.name] for p in prompts}
    mixed = [request(f"{p.name}/{k}", p.text, Plan("ngram", k)) for p in prompts for k in KS]
    together, num_accepted = run(engine, mixed)
    different = [rid for rid, text in together.items() if text != alone[rid.partition("/")[0]]]
    assert different == []
    assert len(together) == len(prompts) * len(KS)
    assert num_accepted > 500, "without accepted drafts the equality would say little"
