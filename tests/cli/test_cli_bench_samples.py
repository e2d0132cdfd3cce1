"""Speeds of answers, and medians of ratios over them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from bench_samples import sample

from outrider.cli.bench.samples import SETTING_OFF, Samples, Setting, ratio


def test_decoding_is_timed_from_the_first_moment_on() -> None:
    """What came at the first moment, however many tokens, took the prompt's time and counts for nothing."""
    answer = replace(sample("ngram", 3), token_ids=(1,) * 9, counts=(2, 5, 9), times_s=(4.0, 5.0, 7.0))
    assert answer.decode() == (7, 3.0)
    assert answer.decode(6) == (3, 1.0)
    assert answer.decode(4) is None
    assert answer.speed(4) is None


def test_a_ratio_is_taken_over_the_tokens_that_both_have() -> None:
    """A long answer that slows down late is compared with a short one by its beginning."""
    slow_late = replace(
        sample("off"), token_ids=(1,) * 21, counts=(1, 11, 21), times_s=(0.0, 1.0, 11.0)
    )  # 10 tokens/s, then 1
    short = sample("hf", tokens_per_s=5.0, num_tokens=11)
    assert ratio(slow_late, short) == pytest.approx(2.0)
    assert ratio(short, slow_late) == pytest.approx(0.5)


def test_ratios_are_medians_over_cases_on_the_same_case() -> None:
    """Cases of one arm only say nothing; repetitions of a case count as one."""
    speeds = {"a": 10.0, "b": 20.0, "c": 90.0}
    measured = [sample("off", case=case) for case in speeds for _ in range(2)]
    measured += [sample("ngram", 3, case=case, tokens_per_s=speed) for case, speed in speeds.items()]
    measured.append(sample("ngram", 3, case="alone", tokens_per_s=1000.0))
    assert Samples(measured).ratio(Setting("ngram", 3), SETTING_OFF) == pytest.approx(2.0)
    assert Samples(measured).ratio(Setting("suffix", 3), SETTING_OFF) is None


def test_the_best_k_is_the_one_that_gains_most() -> None:
    """Of the arm that is asked for; none when it was not measured."""
    measured = [sample("off"), sample("suffix", 3, tokens_per_s=99.0)]
    measured += [sample("ngram", k, tokens_per_s=speed) for k, speed in ((2, 11.0), (4, 15.0), (8, 12.0))]
    assert Samples(measured).best("ngram") == Setting("ngram", 4)
    assert Samples(measured).best("prediction") is None
    assert Samples(measured).best_of(("ngram", "suffix")) == Setting("suffix", 3)
    assert Samples(measured).best_of(("prediction",)) is None


def test_groups_part_samples() -> None:
    """By the case's group."""
    both = Samples([sample("off"), sample("off", group="rag", tokens_per_s=30.0)])
    assert both.groups == ["quote", "rag"]
    assert both.in_groups(["rag"]).speed(SETTING_OFF) == pytest.approx(30.0)
    assert both.in_groups(["rag"]).cases == [both.cases[1]]


def test_the_json_form_names_arm_case_and_speed() -> None:
    """It can be written, and holds the moments too."""
    data = json.loads(json.dumps(sample("ngram", 3, histogram=(1, 2)).as_dict()))
    assert (data["arm"], data["k"], data["case"]) == ("ngram", 3, "one")
    assert data["tokens_per_s"] == pytest.approx(10.0)
    assert data["stats"]["histogram"] == [1, 2]
