"""Which requests mixed traffic is made of, and what of the options is refused."""

from __future__ import annotations

from itertools import islice

import pytest

from outrider.cli.bench.mix import (
    FIXED,
    Cell,
    Mix,
    limits,
    mixed_cases,
    num_measured,
    parse_fixed,
    parse_sizes,
    usual_fixed,
)
from outrider.cli.bench.samples import SETTING_OFF, Case, Setting
from outrider.cli.bench.visits import POLICY
from outrider.config import packaged_data
from outrider.errors import ConfigError
from outrider.workloads.spec_bench import Question
from outrider.workloads.suite import load_prompts

CASES = {name: [Case(f"{name}-{i}", name, "text") for i in range(6)] for name in ("code", "chat")}
FIXED_TWO = [SETTING_OFF, Setting("ngram", 4)]


def test_a_round_visits_every_workload_with_every_setting() -> None:
    """And tries useless drafters in one of them; the policy is held against off there."""
    mix = Mix(CASES, [1, 4], FIXED_TWO, 16)
    assert mix.num_cells == 6
    for size in mix.sizes:
        turns = list(islice(mix.turns(size), 3))
        assert {(turn.cell, turn.round) for turn in turns} == {
            (Cell("code", size), 0), (Cell("code", size, is_hopeless=True), 0), (Cell("chat", size), 0),
        }  # fmt: skip
        for turn in turns:
            wanted = {SETTING_OFF, POLICY} if turn.cell.is_hopeless else {*FIXED_TWO, POLICY}
            assert set(turn.settings) == wanted


def test_rounds_begin_with_other_settings_and_other_prompts() -> None:
    """So that neither a place in the order nor one prompt decides."""
    turns = list(islice(Mix(CASES, [1], FIXED_TWO, 16).turns(1), 9))
    chat = [turn for turn in turns if turn.cell == Cell("chat", 1)]
    assert [turn.round for turn in chat] == [0, 1, 2]
    assert len({turn.cases[0] for turn in chat}) == 3
    assert len({turn.settings[0] for turn in turns if turn.cell.is_hopeless}) == 2


def test_the_first_requests_are_staggered() -> None:
    """They end one by one, and a measurement lasts as long as they do, or longer where they are few."""
    assert list(islice(limits(4, 40), 6)) == [10, 20, 30, 40, 40, 40]
    assert list(islice(limits(3, 10), 3)) == [4, 7, 10]
    assert (num_measured(4, 40), num_measured(1, 40)) == (100, 60)


def test_more_requests_than_the_engine_runs_are_refused() -> None:
    """Some would wait, and the batch would not be what its row says."""
    with pytest.raises(ConfigError, match="--batch 17"):
        Mix(CASES, [1, 17], FIXED_TWO, 16)


def test_the_shipped_prompts_are_four_workloads_of_six() -> None:
    """Creative ones are hot, code and quotes greedy, as such requests are."""
    cases = mixed_cases(load_prompts(packaged_data("workloads") / "mixed.yaml"), [])
    assert {name: len(found) for name, found in cases.items()} == dict.fromkeys(
        ("code", "quote", "chat", "creative"), 6
    )
    heats = {name: {case.temperature for case in found} for name, found in cases.items()}
    assert heats == {"code": {0.0}, "quote": {0.0}, "chat": {0.0, 0.7}, "creative": {1.2}}
    assert {case.max_tokens for found in cases.values() for case in found} == {64}


def test_questions_replace_the_workloads_that_they_stand_for() -> None:
    """The quotes stay ours; long questions are left out."""
    questions = [
        Question(question_id=1, category="coding", turns=["Write a loop."]),
        Question(question_id=2, category="coding", turns=["x" * 5000]),
        Question(question_id=3, category="writing", turns=["Write an ode."]),
        Question(question_id=4, category="rag", turns=["What?"]),
    ]
    cases = mixed_cases(load_prompts(packaged_data("workloads") / "mixed.yaml"), questions)
    assert [case.name for case in cases["code"]] == ["coding-1"]
    assert [(case.name, case.temperature) for case in cases["creative"]] == [("writing-3", 1.2)]
    assert {name: len(cases[name]) for name in ("quote", "chat")} == {"quote": 6, "chat": 6}


def test_fixed_settings_are_read_and_off_is_always_one() -> None:
    """In the order given; what no engine here can run is named."""
    drafters = ("ngram", "suffix")
    assert parse_fixed("suffix:3, ngram:4,ngram:4", drafters) == [
        SETTING_OFF,
        Setting("suffix", 3),
        Setting("ngram", 4),
    ]
    assert len(parse_fixed(FIXED, drafters)) == 6
    for wrong in ("eagle2:4", "ngram", "ngram:0", "ngram:17", "ngram:x"):
        with pytest.raises(ConfigError, match=f"--fixed {wrong}"):
            parse_fixed(f"off,{wrong}", drafters)


def test_heads_that_the_engine_has_are_fixed_settings_too() -> None:
    """Each once, so that the policy is held against them, and in an order that turns evenly."""
    assert usual_fixed(["ngram", "suffix"]) == FIXED
    drafters = ["ngram", "suffix", "prediction", "layer_skip", "eagle2", "hybrid", "medusa"]
    found = parse_fixed(usual_fixed(drafters), drafters)
    assert found[6:] == [Setting("hybrid", 4), Setting("eagle2", 4), Setting("medusa", 4)]


def test_sizes_are_read() -> None:
    """Ascending, without repetitions."""
    assert parse_sizes("12, 1,4,1") == [1, 4, 12]
    for wrong in ("", "0", "1,x", "-1"):
        with pytest.raises(ConfigError, match="--batch"):
            parse_sizes(wrong)
