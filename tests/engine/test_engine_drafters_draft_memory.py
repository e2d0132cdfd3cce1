"""Memory of drafting models: counted, bounded, and given back however requests end."""

from __future__ import annotations

import random
import resource
from functools import partial
from pathlib import Path

import pytest
import torch

from outrider.engine.attention.choice import sdpa_on
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.drafters.layer_skip import LayerSet, write_layer_set
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.model import LlamaModel
from outrider.engine.placement import Placement
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.policy.plan import Plan
from outrider.speculation.target import SamplingLaw
from random_llama import write_random_llama

NAMES = ("draft_model", "layer_skip")


def make_engine(folder: Path, limits: EngineLimits) -> Engine:
    write_random_llama(folder / "target", num_layers=6)
    write_random_llama(folder / "draft", num_layers=3)
    write_layer_set(folder / "set.json", LayerSet(num_layers=6, skip=(2, 3)))
    return Engine(folder / "target", limits, DraftOptions(folder / "draft", folder / "set.json"))


def request(rid: str, name: str, num_prompt: int = 60, num_tokens: int = 30) -> GenerateRequest:
    prompt = tuple((7 * i + len(rid)) % 64 for i in range(num_prompt))
    return GenerateRequest(rid, prompt, SamplingLaw(0.0), num_tokens, Plan(name, 3), 0)


def test_no_more_is_given_than_there_is(tmp_path: Path) -> None:
    """What does not fit is refused until something comes back; layers that are not run cost nothing."""
    model = make_engine(tmp_path, EngineLimits(max_total_tokens=1024)).model
    memory = DraftMemory(model, 112, num_layers=4)
    assert memory.bytes_per_token == 2 * 4 * 4 * 2 * 16 and memory.max_bytes == 112 * memory.bytes_per_token
    cache = memory.take(70)
    assert cache is not None and memory.take(33) is None
    assert memory.reserved_bytes == cache.capacity * memory.bytes_per_token == 80 * memory.bytes_per_token
    memory.give_back(cache)
    cache = memory.take(100)
    assert cache is not None and cache.capacity == memory.num_reserved == 112 and memory.take(1) is None


def test_what_a_device_holds_counts_whole(tmp_path: Path) -> None:
    """Only a CPU's pages cost nothing until they are touched; keys and values have the model's type."""
    write_random_llama(tmp_path, num_layers=6)
    model = LlamaModel(tmp_path, partial(sdpa_on, placement=Placement(torch.device("meta"), torch.bfloat16)))
    assert DraftMemory(model, 112, num_layers=4).bytes_per_token == 2 * 2 * 6 * 2 * 16


def test_waiting_requests_hold_nothing(tmp_path: Path) -> None:
    """Caches exist from the first proposal on, so only of requests that run; what they hold is reported."""
    limits = EngineLimits(max_running=2, max_total_tokens=1024, context_length=128)
    engine = make_engine(tmp_path, limits)
    for i in range(8):
        engine.add(request(str(i), NAMES[i % 2]))
    assert all(engine.drafters.memory[name].num_reserved == 0 for name in NAMES)
    most = 0
    while engine.has_work:
        engine.step()
        held = [engine.drafters.memory[name].num_reserved for name in NAMES]
        most = max(most, *held)
        assert sum(held) <= 2 * 96
    assert most >= 96
    info = engine.drafters.info["layer_skip"]
    assert info["max_cache_bytes"] == 2 * 128 * engine.drafters.memory["layer_skip"].bytes_per_token
    assert info["cache_bytes"] == 0 and engine.memory["max_cache_bytes"] == 1024 * 2 * 4 * 6 * 2 * 16


def test_who_finds_no_memory_goes_on_without_drafts(tmp_path: Path) -> None:
    """And drafts as soon as there is some."""
    engine = make_engine(tmp_path, EngineLimits(max_total_tokens=1024))
    memory = engine.drafters.memory["layer_skip"]
    memory.num_reserved = memory.max_positions
    engine.add(request("a", "layer_skip"))
    for _ in range(10):
        engine.step()
    (sequence,) = engine.scheduler
    assert sequence.num_output > 5 and sequence.num_proposed == 0
    memory.num_reserved = 0
    while engine.has_work:
        outputs = engine.step()
    stats = outputs[-1].stats
    assert stats is not None and stats.num_proposed and outputs[-1].num_drafter_failures == 0
    assert memory.num_reserved == 0


@pytest.mark.timeout(120)
def test_memory_is_flat_over_many_requests(tmp_path: Path) -> None:
    """A hundred requests, preempted, cancelled or finished: all give back, and the process does not grow."""
    rng = random.Random(3)
    limits = EngineLimits(max_running=3, max_total_tokens=192, context_length=160)
    engine = make_engine(tmp_path, limits)
    memories = [engine.drafters.memory[name] for name in NAMES]
    halfway_kb, next_id, open_ids = 0, 0, list[str]()
    while next_id < 100 or engine.has_work:
        while next_id < 100 and len(open_ids) < 6:
            open_ids.append(str(next_id))
            engine.add(request(open_ids[-1], NAMES[next_id % 2], rng.randint(30, 110), rng.randint(1, 20)))
            next_id += 1
        for output in engine.step():
            if output.finish is not None:
                open_ids.remove(output.rid)
        if open_ids and rng.random() < 0.1:
            engine.abort(gone := rng.choice(open_ids), Finish("abort"))
            open_ids.remove(gone)
        assert all(memory.num_reserved <= memory.max_positions for memory in memories)
        if next_id >= 50 and not halfway_kb:
            halfway_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert engine.scheduler.num_preemptions > 0
    assert [memory.num_reserved for memory in memories] == [0, 0]
    # Every request writes some 100 KB of its draft cache; keeping those of the second half would take 5 MB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - halfway_kb < 3_000
