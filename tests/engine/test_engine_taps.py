"""What a drafter is shown of the target: the states of the text at their positions, whatever was drafted and held."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outrider.engine.attention import Segment
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.kv_cache import BLOCK_SIZE
from outrider.engine.sequence import GenerateRequest
from outrider.engine.taps import Taps
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.proposal import TopKTree
from outrider.speculation.target import SamplingLaw
from random_llama import write_random_llama

NUM_TOKENS = 50
POINTS = (1, 3)


class _Recorder:
    """Keeps the states by position. Knows the answer, and hides a part of it behind wrong first children."""

    points = POINTS

    def __init__(self, answer: tuple[int, ...]) -> None:
        self._answer = answer
        self._num_observed = 0
        self.states: dict[int, torch.Tensor] = {}

    def observe(self, token_id: int) -> None:
        assert token_id == self._answer[self._num_observed]
        self._num_observed += 1

    def observe_features(self, start: int, features: torch.Tensor) -> None:
        for position, state in enumerate(features, start):
            self.states[position] = state

    def propose(self, k: int) -> TopKTree:
        """Of each depth a wrong token and the right one; at depth 3 both are wrong."""
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for depth, right in enumerate(self._answer[self._num_observed :][: k // 2]):
            tokens += [(right + 1) % 64, (right + (2 if depth == 3 else 0)) % 64]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return TopKTree(tuple(tokens), tuple(parents))

    def free(self) -> None:
        """Its states are compared afterwards."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taps") / "llama"
    write_random_llama(folder, num_layers=3)
    return folder


def request(rid: str, plan: Plan) -> GenerateRequest:
    prompt = tuple((7 * i * i + 3 * i + int(rid)) % 64 for i in range(37))
    return GenerateRequest(rid, prompt, SamplingLaw(0.8), NUM_TOKENS, plan, seed=int(rid))


def answers(engine: Engine, drafters: dict[str, _Recorder]) -> dict[str, tuple[int, ...]]:
    """Of four requests, in one batch."""
    found = {str(i): () for i in range(4)}
    for rid in found:
        drafter = drafters.get(rid)
        plan = PLAN_OFF if drafter is None else Plan("eagle2", 8)
        guarded = None if drafter is None else GuardedDrafter(lambda drafter=drafter: drafter, 64)
        engine.add(request(rid, plan), guarded)
    while engine.has_work:
        for output in engine.step():
            assert output.num_drafter_failures == 0
            found[output.rid] += output.token_ids
    return found


@pytest.mark.parametrize("num_blocks", [60, 12], ids=["roomy", "tight"])
def test_states_are_those_of_a_pass_over_the_whole_text(folder: Path, num_blocks: int) -> None:
    """Trees of which late branches are accepted, prompts in parts, preemptions and cached beginnings: every position
    from the first one shown on has the state that a fresh pass gives it."""
    limits = EngineLimits(max_total_tokens=num_blocks * BLOCK_SIZE, context_length=96, max_prefill_rows=10)
    engine = Engine(folder, limits)
    plain = answers(Engine(folder, EngineLimits(max_total_tokens=1024)), {})
    firsts = []
    for _ in range(2):
        drafters = {rid: _Recorder(answer) for rid, answer in plain.items()}
        assert answers(engine, drafters) == plain
        for rid, drafter in drafters.items():
            text = (*request(rid, PLAN_OFF).prompt_ids, *plain[rid])[:-1]
            first, last = min(drafter.states), max(drafter.states)
            assert set(drafter.states) == set(range(first, last + 1)) and last >= len(text) - 5
            taps = Taps(POINTS)
            engine.model.forward([Segment(engine.model.new_cache(len(text)), text, 1)], taps=taps)
            expected = taps.features(POINTS, range(first, last + 1))
            shown = torch.stack([drafter.states[position] for position in range(first, last + 1)])
            torch.testing.assert_close(shown, expected, atol=2e-3, rtol=2e-3)
            firsts.append(first)
    is_roomy = num_blocks == 60
    assert firsts[:4] == [0] * 4 and (min(firsts[4:]) > 0 or not is_roomy), "the second time beginnings are cached"
    assert (engine.scheduler.num_preemptions > 0) is not is_roomy
