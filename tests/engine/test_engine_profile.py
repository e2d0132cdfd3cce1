"""Profiling: every cell is measured, the table comes back from its file, and steps that use it waste fewer rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outrider.cost import VERSION, CostTable
from outrider.engine.drafters.eagle_checkpoint import write_head
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.drafters.medusa import write_medusa
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.linear import has_fbgemm
from outrider.engine.placement import CPU, Placement
from outrider.engine.profile import (
    CONTEXTS,
    NUM_SEQUENCES,
    WIDTHS,
    machine_key,
    profile,
    read_table,
    table_path,
    with_drafter,
)
from outrider.engine.sequence import GenerateRequest
from outrider.errors import ModelError
from outrider.policy.plan import Plan
from outrider.speculation.proposal import PointMass
from outrider.speculation.target import SamplingLaw
from random_heads import random_head, random_medusa
from random_llama import write_random_llama

PROMPT = (0, 1, 2, 3, 0, 1)


def test_a_profile_fills_the_table_and_leaves_nothing_behind(toy_folder: Path, tmp_path: Path) -> None:
    """All cells are positive, every drafter that can run is timed, and the engine is idle afterwards."""
    engine = Engine(toy_folder, EngineLimits(max_total_tokens=16384))
    seen: list[float] = []
    table = profile(engine, toy_folder, lambda what, fraction: seen.append(fraction))
    assert len(table.round_s) == len(NUM_SEQUENCES) and len(table.round_s[0]) == len(WIDTHS)
    assert all(cell > 0 for plane in table.round_s for row in plane for cell in row)
    assert set(table.drafters) == set(engine.drafters.makers)
    assert all(0 < cost.first_s < cost.round_s for cost in table.drafters.values())
    own = {name: cost.bytes_per_token for name, cost in table.drafters.items() if cost.bytes_per_token}
    assert own == {"layer_skip": table.bytes_per_token} and table.resident_bytes > 10**8
    assert table.weight_bytes == engine.memory["weight_bytes"] == engine.model.packed_bytes and table.read_s > 0
    assert not engine.has_work and engine.pool.num_used_tokens == 0
    assert seen == sorted(seen) and len(seen) == len(NUM_SEQUENCES) * len(CONTEXTS) + len(table.drafters)
    path = tmp_path / "table.json"
    path.write_text(table.model_dump_json())
    assert read_table(path) == table


def test_files_of_other_models_and_damaged_ones(toy_folder: Path, attentive_folder: Path, tmp_path: Path) -> None:
    """Each model has a file of its own; none is none; one that is no table is an error that says what to do."""
    assert table_path(toy_folder, tmp_path) != table_path(attentive_folder, tmp_path)
    here = machine_key(toy_folder, CPU)
    assert set(here) >= {"cpu", "model", "torch", "outrider"} and (here["device"], here["dtype"]) == (
        "cpu",
        "float32",
    )
    half = Placement(torch.device("cpu"), torch.bfloat16)
    assert {name for name, value in machine_key(toy_folder, half).items() if here[name] != value} == {"dtype"}
    assert read_table(tmp_path / "nothing.json") is None
    (tmp_path / "bad.json").write_text('{"version": 1}')
    with pytest.raises(ModelError, match="profile again"):
        read_table(tmp_path / "bad.json")


class _WrongDrafter:
    """Always proposes a token that never follows."""

    def observe(self, token_id: int) -> None:
        """Learns nothing."""

    def propose(self, k: int) -> PointMass:
        return PointMass((60,) * k)

    def free(self) -> None:
        """Holds nothing."""


def steep_table() -> CostTable:
    """A round costs as much as its rows."""
    widths = (1, 9)
    return CostTable(
        version=VERSION, key={}, num_sequences=(1,), widths=widths, contexts=(1,),
        round_s=(tuple((float(width),) for width in widths),), bytes_per_token=1, weight_bytes=1, read_s=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("has_table", [False, True])
def test_drafts_that_do_not_pay_are_not_verified(toy_folder: Path, has_table: bool) -> None:
    """Where every row costs a plain step, no draft is worth it that could be wrong; the text is as long."""
    engine = Engine(toy_folder, EngineLimits(), cost=steep_table() if has_table else None)
    request = GenerateRequest("a", PROMPT, SamplingLaw(0.0), 30, Plan("ngram", 8), 0)
    engine.add(request, GuardedDrafter(_WrongDrafter, 64))
    tokens: tuple[int, ...] = ()
    num_proposed = 0
    while engine.has_work:
        for output in engine.step():
            tokens += output.token_ids
            num_proposed = output.stats.num_proposed or 0 if output.stats else num_proposed
    assert len(tokens) == 30
    assert num_proposed == 0 if has_table else num_proposed > 150


class _Confident(_WrongDrafter):
    """Says, or does not, how likely its drafts are."""

    def __init__(self, chances: tuple[float, ...] | None) -> None:
        self._chances = chances

    def propose(self, k: int) -> PointMass:
        return PointMass((60, 60, 60)[:k], None if self._chances is None else self._chances[:k])


@pytest.mark.parametrize(("chances", "num_verified"), [(None, 0), ((0.6, 0.5, 0.4), 0), ((0.9, 0.85, 0.1), 2)])
def test_drafts_pay_by_what_their_drafter_says_of_them(
    toy_folder: Path, chances: tuple[float, ...] | None, num_verified: int
) -> None:
    """Where a row costs 0.7 of a plain step; of drafts of which nothing is said less is assumed."""
    table = steep_table().model_copy(update={"round_s": ((((1.0,), (1.0 + 8 * 0.7,))),)})
    engine = Engine(toy_folder, EngineLimits(), cost=table)
    engine.add(
        GenerateRequest("a", PROMPT, SamplingLaw(0.0), 30, Plan("ngram", 3), 0),
        GuardedDrafter(lambda: _Confident(chances), 64),
    )
    while not next(iter(engine.scheduler)).num_output:
        engine.step()
    (work,) = engine.scheduler.schedule()
    assert len(work.proposal) == num_verified


def test_acceptance_is_learnt_from_what_was_reached(toy_folder: Path) -> None:
    """It falls with every rejection, and starts from an assumption."""
    engine = Engine(toy_folder, EngineLimits())
    engine.add(
        GenerateRequest("a", PROMPT, SamplingLaw(0.0), 30, Plan("ngram", 8), 0), GuardedDrafter(_WrongDrafter, 64)
    )
    estimates = []
    while engine.has_work:
        estimates += [sequence.acceptance for sequence in engine.scheduler]
        engine.step()
    assert estimates[0] == 0.6
    assert estimates == sorted(estimates, reverse=True) and estimates[-1] < 0.1


class _FailingDrafter(_WrongDrafter):
    """Fails when it is asked."""

    def propose(self, k: int) -> PointMass:
        raise RuntimeError("no draft")


def test_a_drafter_that_fails_is_no_row(toy_folder: Path) -> None:
    """What a failure takes is no cost: profiling ends with the drafter's name, and the engine is idle."""
    engine = Engine(toy_folder, EngineLimits(max_total_tokens=8192))
    table = steep_table()
    assert with_drafter(engine, table, "ngram").drafters["ngram"].first_s > 0
    makers = engine.drafters.makers
    assert isinstance(makers, dict)
    makers["suffix"] = lambda request: _FailingDrafter()
    with pytest.raises(ModelError, match="drafter suffix failed while it was timed"):
        with_drafter(engine, table, "suffix")
    assert not engine.has_work


def test_costs_are_of_the_head_they_were_measured_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another folder's head, and the same one in 8 bits, have no measured cost; other drafters keep theirs."""
    target = tmp_path / "target"
    write_random_llama(target, num_layers=3)
    for name, seed in (("one", 0), ("two", 1)):
        write_head(tmp_path / name, random_head(target, "eagle", seed=seed))
    write_medusa(tmp_path / "medusa", random_medusa(target), "target")
    limits = EngineLimits(max_total_tokens=2048, context_length=256)
    one = DraftOptions(eagle=(tmp_path / "one",), medusa=tmp_path / "medusa")
    engine = Engine(target, limits, one)
    table = steep_table()
    for name in ("ngram", "layer_skip", "eagle2", "medusa"):
        table = with_drafter(engine, table, name)
    assert table.drafters["eagle2"].digest and not table.drafters["ngram"].digest

    def known(options: DraftOptions) -> set[str]:
        cost = Engine(target, limits, options, table).cost
        assert cost is not None
        return set(cost.drafters)

    assert known(one) == {"ngram", "layer_skip", "eagle2", "medusa"} and "left out" not in caplog.text
    assert known(replace(one, eagle=(tmp_path / "two",))) == {"ngram", "layer_skip", "medusa"}
    assert "left out: eagle2" in caplog.text
    caplog.clear()
    if has_fbgemm():
        assert known(replace(one, is_int8=True)) == {"ngram", "layer_skip"}
    caplog.clear()
    assert known(DraftOptions()) == {"ngram", "layer_skip"} and "left out" not in caplog.text
