"""Rows and tables of what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_samples import sample

from outrider.cli.bench.measure import Results
from outrider.cli.bench.report import (
    agreement_rows,
    batch_rows,
    drafter_rows,
    group_rows,
    parts,
    task_rows,
)
from outrider.cli.bench.samples import SETTING_OFF, BatchSample, Samples, Setting
from outrider.engine.anatomy import Anatomy


def test_drafters_are_listed_by_k_with_the_best_marked() -> None:
    """A text that differs from off in one token is not the same text."""
    other = replace(sample("suffix", 3, histogram=(4, 8)), token_ids=(*range(20), 99))
    rows = drafter_rows(
        Samples(
            [
                sample("off"), sample("hf"), sample("ngram", 3, tokens_per_s=15.0, histogram=(5, 5, 2)),
                sample("ngram", 6, tokens_per_s=12.0), other,
            ]
        )
    )  # fmt: skip
    assert [(row["drafter"], row["k"], row["best"], row["same text"]) for row in rows] == [
        ("ngram", 3, True, "1 of 1"),
        ("ngram", 6, False, "1 of 1"),
        ("suffix", 3, True, "0 of 1"),
    ]
    assert rows[0]["accept length"] == pytest.approx(1 + 9 / 12)
    assert rows[0]["/ off"] == pytest.approx(1.5)
    assert rows[1]["accept length"] is None


def test_groups_show_each_arm_at_its_best_k() -> None:
    """Medians per group, and over all answers; an arm that a group was not given is a dash."""
    rows = group_rows(
        Samples([sample("off"), sample("off", group="rag", tokens_per_s=30.0, case="two"), sample("ngram", 3)])
    )
    assert [(row["group"], row["prompts"]) for row in rows] == [("quote", 1), ("rag", 1), ("all", 2)]
    assert [row["off"] for row in rows] == pytest.approx([10.0, 30.0, 20.0])
    assert rows[1]["ngram k=3"] is None
    assert [(row["best"], row["best / off"]) for row in rows] == [
        ("ngram k=3", pytest.approx(1.0)), ("-", None), ("ngram k=3", pytest.approx(1.0)),
    ]  # fmt: skip


def test_agreement_says_where_texts_part() -> None:
    """A beginning of our text agrees with it; the median is over those that differ."""
    theirs = [
        sample("hf", num_tokens=5),
        replace(sample("hf", case="two"), token_ids=(0, 1, 2, 77)),
    ]
    (row,) = agreement_rows(Samples([sample("off"), sample("off", case="two"), *theirs]))
    assert (row["answers"], row["identical"], row["median tokens until the first difference"]) == (2, 1, 3)


def test_batches_are_medians_held_against_one_request() -> None:
    """One row per size, a pair of columns per setting."""
    drafted = Setting("ngram", 3)
    speeds = {(SETTING_OFF, 1): (9.0, 10.0, 50.0), (SETTING_OFF, 8): (40.0,), (drafted, 1): (20.0,)}
    rows = batch_rows([BatchSample(*key, speed) for key, found in speeds.items() for speed in found])
    assert rows == [
        {"batch": 1, "off tok/s": 10.0, "off / batch 1": 1.0, "ngram k=3 tok/s": 20.0, "ngram k=3 / batch 1": 1.0},
        {"batch": 8, "off tok/s": 40.0, "off / batch 1": 4.0},
    ]


def test_an_interrupted_run_shows_what_it_has() -> None:
    """Tables of what was not measured are left out; the aims stand and say so."""
    step = Anatomy(0.025, 0.026, 0.010, 0.011, 0.02125, 9, [("mm", 0.01)])
    tables = parts(Results(anatomy=step))
    assert [len(rows) for rows in tables.values()][:2] == [1, 1]
    assert list(tables) == [
        "a step without speculation", "its operators, milliseconds a step", "aims",
    ]  # fmt: skip
    results = [row["result"] for row in tables["aims"]]
    assert (results[0], results[1], results[-1]) == ("MISSED", "not measured", "met")


def test_the_table_by_task_pools_prompts_by_the_median_of_their_rounds() -> None:
    """A slow round among three does not count; texts are compared round by round."""
    measured = []
    for number, speed in enumerate((10.0, 10.0, 1.0)):
        measured.append(replace(sample("off", tokens_per_s=speed), round=number))
        ran = sample("policy", tokens_per_s=2 * speed, histogram=(10, 5))
        measured.append(replace(ran, round=number, drafter="ngram", k=5))
    (rows,) = parts(Results(measured)).values()
    assert [row["task"] for row in rows] == ["quote", "all"]
    assert (rows[0]["off tok/s"], rows[0]["policy tok/s"]) == (pytest.approx(10.0), pytest.approx(20.0))
    assert (rows[0]["policy/off"], rows[0]["off/hf"]) == (pytest.approx(2.0), None)
    assert (rows[0]["drafter"], rows[0]["k"], rows[0]["same text"]) == ("ngram", "5", "3 of 3")


def test_the_table_by_task_weighs_verify_steps_and_not_answers() -> None:
    """Ten steps with one accepted draft each beside one step with four: 14 drafts in 11 steps."""
    long, short = sample("policy", histogram=(0, 10)), sample("policy", case="two", histogram=(0, 0, 0, 0, 1))
    rows = task_rows(Samples([sample("off"), sample("off", case="two"), long, short]))
    assert rows[-1]["accept length"] == pytest.approx(1 + 14 / 11)


def test_a_task_at_two_temperatures_has_two_rows() -> None:
    """Each with its own figures; the last row is of all."""
    cold = [sample("off"), sample("policy", tokens_per_s=20.0)]
    warm = replace(cold[0].case, name="warm", temperature=0.7)
    hot = [replace(one, case=warm) for one in (sample("off"), sample("policy"))]
    rows = task_rows(Samples([*cold, *hot]))
    assert [(row["task"], row["T"]) for row in rows] == [("quote", "0"), ("quote", "0.7"), ("all", "0-0.7")]
    assert [row["policy/off"] for row in rows[:2]] == pytest.approx([2.0, 1.0])


def test_other_programs_are_compared_over_as_many_tokens_as_they_wrote() -> None:
    """Ours slows down after what the other program wrote, which does not count against it."""
    times = (*(1 + i / 20 for i in range(11)), *(1.5 + i for i in range(1, 11)))
    ours = replace(sample("off"), times_s=times)  # 20 tokens/s for ten tokens, then 1
    rows = task_rows(Samples([ours, sample("policy"), sample("hf", tokens_per_s=10.0, num_tokens=11)]))
    assert rows[-1]["off/hf"] == pytest.approx(2.0)


def test_no_text_is_claimed_over_no_pairs() -> None:
    """An interrupted run may have answers of one side only."""
    assert task_rows(Samples([sample("policy")]))[-1]["same text"] is None
    assert drafter_rows(Samples([sample("ngram", 3)]))[0]["same text"] is None
