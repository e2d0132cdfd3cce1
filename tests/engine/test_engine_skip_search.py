"""The search for layers to skip: it replays steps as the engine makes them, and finds the set that pays most."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cost import VERSION, CostTable
from outrider.engine.drafters.layer_skip import LayerSet, Trial
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.sequence import GenerateRequest
from outrider.engine.skip_search import _worth, accept_length, expected_speedup, find_layers, search_layers
from outrider.policy.plan import Plan
from outrider.speculation.target import SamplingLaw
from random_llama import write_random_llama


def flat_table(row_s: float = 0.0) -> CostTable:
    """A round takes a second, and `row_s` more for every row beyond the first."""
    return CostTable(
        version=VERSION, key={"cpu": "x"}, num_sequences=(1,), widths=(1, 9), contexts=(1,),
        round_s=(((1.0,), (1.0 + 8 * row_s,)),), bytes_per_token=1, weight_bytes=1, read_s=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("right", "k", "expected"),
    [
        ([True] * 9, 3, 4.0),
        ([True] * 9, 1, 2.0),
        ([False] * 9, 3, 1.0),
        ([True, True, False, True, True, True, True], 2, 2.0),
        ([True], 2, 1.0),
    ],
)
def test_steps_are_replayed(right: list[bool], k: int, expected: float) -> None:
    """Drafts count up to the first wrong one, then one token more; the first token is the prompt's."""
    assert accept_length([right], k) == expected


def test_the_best_k_weighs_tokens_against_time() -> None:
    """Right drafts at a fifth of a step are worth all of them; wrong ones as few as there can be."""
    always, never = [[True] * 91], [[False] * 91]
    assert expected_speedup(always, 0.2, lambda rows: 1.0) == (pytest.approx(9 / 2.6), 8)
    assert expected_speedup(never, 0.2, lambda rows: 1.0) == (pytest.approx(1 / 1.2), 1)
    assert expected_speedup(always, 0.2, lambda rows: float(rows))[0] < 1


def test_the_search_goes_on_to_the_set_that_pays() -> None:
    """One layer alone does not pay; the worst layers are never tried together; ends stay; half at most."""
    loss = {1: 0.3, 2: 0.05, 3: 0.2, 4: 0.06, 5: 0.05, 6: 0.4}

    def trial(skip: frozenset[int]) -> Trial:
        gain = 0.1 * len(skip) ** 2 - sum(loss[layer] for layer in skip)
        return Trial(skip=tuple(sorted(skip)), num_head_tokens=None, k=1, expected_speedup=gain)

    seen: list[float] = []
    found = search_layers(8, trial, lambda what, fraction: seen.append(fraction))
    assert [len(one.skip) for one in found] == [1, 2, 3, 4]
    assert len(seen) == 6 + 4 + 4 + 3 and seen[0] == 0 and seen[-1] == pytest.approx(16 / 17)
    assert found[2].skip == (2, 4, 5) and found[3].skip == (2, 3, 4, 5)
    assert seen == sorted(seen) and 0 not in found[-1].skip and 7 not in found[-1].skip
    assert search_layers(2, trial) == []


def test_a_set_that_changes_nothing_is_found_and_measured(tmp_path: Path) -> None:
    """Idle layers are left out; the engine drafts with the set; on other prompts every draft is right."""
    write_random_llama(tmp_path, num_layers=6)
    engine = Engine(tmp_path, EngineLimits(max_running=2, max_total_tokens=2048))
    for idle in (2, 3, 4):
        layer = engine.model._layers[idle]
        layer.output = layer.down = lambda x: x.new_zeros(x.shape[0], 32)
    prompts = [tuple((7 * i * s + s) % 64 for i in range(24)) for s in range(1, 7)]
    layers = find_layers(engine, flat_table(), prompts)
    assert layers.skip and set(layers.skip) <= {2, 3, 4}
    assert layers.worth is not None and layers.worth.accept_length > 0.8 * (layers.worth.k + 1)
    assert layers.key == {"cpu": "x"} and len(layers.trials) == 3
    assert engine.drafters.info["layer_skip"]["skip"] == layers.skip
    assert LayerSet.model_validate_json(layers.model_dump_json()) == layers
    assert not engine.has_work and engine.drafters.memory["layer_skip"].num_reserved == 0
    engine.add(GenerateRequest("a", prompts[0], SamplingLaw(0.0), 20, Plan("layer_skip", 4), 0))
    while engine.has_work:
        outputs = engine.step()
    stats = outputs[-1].stats
    assert stats is not None and stats.num_accepted == stats.num_proposed


def test_what_was_not_measured_is_not_worth_one(tmp_path: Path) -> None:
    """Without a prompt to check with, or where no answer goes on, what the set is worth stays unknown."""
    write_random_llama(tmp_path, num_layers=3)
    engine = Engine(tmp_path, EngineLimits(max_running=1, max_total_tokens=512))
    assert _worth(engine, [], 4, 0.5) is None
    with pytest.raises(AssertionError):
        find_layers(engine, flat_table(), [(1, 2, 3)])
