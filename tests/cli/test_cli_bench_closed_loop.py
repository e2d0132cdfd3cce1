"""Traffic on the toy engine: always as many requests, the same texts, and a policy that learns."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

import pytest

from outrider.cli.bench.closed_loop import ClosedLoop, measure_mix
from outrider.cli.bench.measure import Clock
from outrider.cli.bench.mix import Cell, Mix, Turn, num_measured
from outrider.cli.bench.ours import EngineArm
from outrider.cli.bench.same_text import compared
from outrider.cli.bench.samples import SETTING_OFF, Case, Setting
from outrider.cli.bench.visits import POLICY
from outrider.cost import VERSION, CostTable

CASES = (
    Case("a", "quote", "Quote this: ABCDABCDAB", 0.0, 24),
    Case("b", "quote", "BCDABCDABC", 0.0, 24),
    Case("c", "quote", "CDCDCDCDAB", 0.8, 24),
)
SETTINGS = (SETTING_OFF, Setting("ngram", 4), Setting("suffix", 4), POLICY)


@pytest.fixture(scope="module")
def ours(toy_folder: Path) -> EngineArm:
    return EngineArm(toy_folder)


@pytest.mark.parametrize("size", [1, 5])
def test_every_setting_writes_the_same_texts(ours: EngineArm, size: int) -> None:
    """Request by request, greedy and sampled; the traffic ends when enough tokens have come."""
    loop, turn = ClosedLoop(ours), Turn(Cell("quote", size), 0, SETTINGS, CASES)
    measured = loop.run(turn)
    assert [traffic.setting for traffic in measured] == list(SETTINGS)
    for traffic in measured:
        assert 0 < traffic.num_tokens < num_measured(size, 24) + 5 * size
        assert traffic.seconds > 0
        assert len(traffic.requests) > size
        assert sum(len(request.token_ids) for request in traffic.requests) >= num_measured(size, 24)
    greedy, sampled = (compared(measured, is_greedy=is_greedy) for is_greedy in (True, False))
    assert (greedy.num, sampled.num) >= (6, 3 if size > 2 else 0)
    assert (greedy.num_parted, sampled.num_parted) == (0, 0)
    assert ours.engine.pool.num_used_tokens == 0


def test_requests_are_decided_as_they_start_and_taught_as_they_end(ours: EngineArm) -> None:
    """Beside all others of the batch; what was cut off teaches nothing."""
    loop = ClosedLoop(ours)
    (traffic,) = loop.run(Turn(Cell("quote", 3), 0, (POLICY,), CASES))
    decisions = [request.decision for request in traffic.requests]
    assert all(decision is not None and decision.option.seen.num_others == 2 for decision in decisions)
    assert [request.plan for request in traffic.requests] == [decision.plan for decision in decisions if decision]
    assert all(request.feedback.num_tokens == len(request.token_ids) for request in traffic.requests)


def test_useless_drafts_are_never_accepted(ours: EngineArm) -> None:
    """They fill every proposal, and the text is that of off."""
    turn = Turn(Cell("quote", 2, is_hopeless=True), 0, (SETTING_OFF, Setting("ngram", 3)), CASES[:2])
    measured = ClosedLoop(ours).run(turn)
    stats = [request.stats for request in measured[1].requests if request.stats is not None]
    assert sum(one.num_proposed or 0 for one in stats) > sum(one.num_verify_steps for one in stats)
    assert sum(one.num_accepted for one in stats) == 0
    assert compared(measured, is_greedy=True).num_parted == 0


def test_fixed_settings_verify_what_they_are_set_to(toy_folder: Path) -> None:
    """By a table in which no draft pays, the policy's queue leaves all out, and theirs none unless it is asked to."""
    flat = {"key": {}, "num_sequences": (1,), "widths": (1, 17), "contexts": (64,), "read_s": 1.0}
    dear = CostTable(version=VERSION, round_s=(((1.0,), (1000.0,)),), bytes_per_token=1, weight_bytes=1, **flat)
    ours, setting = EngineArm(toy_folder, cost=dear), Setting("ngram", 4)
    turn = Turn(Cell("quote", 1), 0, (setting,), CASES[:1])
    (asked,), (trimmed,) = (ClosedLoop(ours, trims_fixed=trims).run(turn) for trims in (False, True))
    proposed = [
        sum(r.stats.num_proposed or 0 for r in one.requests if r.stats is not None) for one in (asked, trimmed)
    ]
    assert proposed[0] > 0
    assert proposed[1] == 0


def test_a_setting_has_a_clock_of_its_own(ours: EngineArm) -> None:
    """What the others take between its slices does not count, neither in its speed nor in what is learnt."""
    turn, own, learnt = Turn(Cell("quote", 1), 0, (POLICY, *[SETTING_OFF] * 9), CASES[:1]), [], []
    for _ in range(3):  # in one of them the machine may stand still
        began_s = time.perf_counter()
        policy, *others = ClosedLoop(ours).run(turn)
        passed_s = time.perf_counter() - began_s
        assert sum(one.seconds for one in (policy, *others)) < passed_s
        own.append(policy.seconds / passed_s)
        learnt.append(max((request.feedback.decode_s or 0.0) / passed_s for request in policy.requests))
    assert min(own) < 0.5 and min(learnt) < 0.5


def test_time_that_is_over_leaves_the_first_cell_of_each_size(ours: EngineArm) -> None:
    """A budget too small for anything still gives a row for each."""
    mix, measured = Mix({"quote": list(CASES)}, [1, 2], [SETTING_OFF, Setting("ngram", 2)], 16), []
    measure_mix(ours, mix, Clock(1e-9, lambda what, fraction: None), measured)
    first, second = (next(mix.turns(size)) for size in (1, 2))
    assert [one.setting for one in measured] == [*first.settings, *second.settings]
    assert {one.turn.cell for one in measured} == {first.cell, second.cell}


def test_the_written_form_names_requests_and_plans(ours: EngineArm) -> None:
    """Plain data."""
    (traffic,) = ClosedLoop(ours).run(Turn(Cell("quote", 1), 0, (POLICY,), CASES[:1]))
    data = traffic.as_dict()
    assert (data["arm"], data["workload"], data["batch"]) == ("policy", "quote", 1)
    assert [one["case"] for one in islice(data["requests"], 2)] == ["a", "a"]
    assert data["requests"][0]["rule"] in ("best-rate", "held", "plain", "no-drafter", "explore", "control")
