"""Aims: met, missed or not measured, by a run's own figures."""

from __future__ import annotations

import pytest
from bench_samples import sample

from outrider.cli.bench.aims import Aim, aims, batch_gain
from outrider.cli.bench.measure import Results
from outrider.cli.bench.samples import SETTING_OFF, BatchSample, Sample, Setting
from outrider.engine.anatomy import Anatomy


def found(samples: list[Sample]) -> dict[str, Aim]:
    return {aim.aim: aim for aim in aims(Results(samples))}


def test_nothing_measured_is_neither_met_nor_missed() -> None:
    """Every aim stands in the table all the same."""
    table = aims(Results())
    assert len(table) >= 12
    assert {(aim.figure, aim.is_met) for aim in table} == {(None, None)}


def test_the_step_is_held_against_reading_and_python() -> None:
    """2.5 reads miss, a Python share of 15 % meets."""
    table = aims(Results(anatomy=Anatomy(0.025, 0.026, 0.010, 0.011, 0.02125, 9, [])))
    steps = {aim.aim: (aim.figure, aim.is_met) for aim in table if aim.figure is not None}
    assert steps == {
        "off step / reading the packed weights": (pytest.approx(2.5), False),
        "share of Python in an off step": (pytest.approx(0.15), True),
    }


def test_a_drafter_is_held_at_its_best_k_against_its_fastest_counterpart() -> None:
    """layer_skip must beat both ways of assisted generation."""
    table = found(
        [
            sample("off"), sample("layer_skip", 2, tokens_per_s=8.0), sample("layer_skip", 4, tokens_per_s=6.0),
            sample("hf_assisted", tokens_per_s=4.0), sample("hf_early_exit", tokens_per_s=9.0),
        ]
    )  # fmt: skip
    aim = table["layer_skip / hf_assisted or hf_early_exit"]
    assert (aim.figure, aim.is_met, aim.by) == (pytest.approx(8 / 9), False, "layer_skip k=2")
    assert table["ngram / hf_lookup"].is_met is None


def test_quoting_is_held_against_the_faster_llama() -> None:
    """With look-up or plain."""
    table = found(
        [
            sample("off"), sample("suffix", 6, tokens_per_s=40.0), sample("llama", tokens_per_s=20.0),
            sample("llama_lookup", tokens_per_s=32.0),
        ]
    )  # fmt: skip
    assert table["quoting / llama.cpp"].figure == pytest.approx(1.25)
    assert table["quoting / llama.cpp"].is_met is True
    assert table["summarising / llama.cpp"].is_met is None


def test_categories_of_spec_bench_come_before_our_own_prompts() -> None:
    """The gain in summaries is that of its questions where they were measured."""
    own = [sample("off", group="summarise"), sample("ngram", 3, group="summarise", tokens_per_s=50.0)]
    theirs = [
        sample("off", group="spec/summarization", case="two"),
        sample("ngram", 3, group="spec/summarization", case="two", tokens_per_s=15.0),
    ]
    assert found(own)["summarisation / off"].figure == pytest.approx(5.0)
    assert found(own + theirs)["summarisation / off"].figure == pytest.approx(1.5)
    assert found(own + theirs)["summarisation / off"].is_met is False


def test_a_batch_of_eight_is_held_against_one_without_speculation() -> None:
    """Medians over rounds; what a drafter does in a batch has no say."""
    batch = [BatchSample(SETTING_OFF, 1, speed) for speed in (9.0, 10.0, 30.0)]
    batch += [BatchSample(SETTING_OFF, 8, 35.0), BatchSample(Setting("ngram", 3), 8, 99.0)]
    assert batch_gain(Results(batch=batch)) == pytest.approx(3.5)
    assert batch_gain(Results(batch=batch[:3])) is None


def test_a_drafter_that_does_not_pay_says_so() -> None:
    """It may beat its counterpart, and be slower than no speculation all the same."""
    table = found(
        [sample("off"), sample("draft_model", 2, tokens_per_s=8.0), sample("hf_assisted", tokens_per_s=4.0)]
    )
    aim = table["draft_model / hf_assisted"]
    assert (aim.figure, aim.is_met, aim.by) == (pytest.approx(2.0), True, "draft_model k=2")
    assert aim.why == "slower than no speculation: 0.80 of off"
