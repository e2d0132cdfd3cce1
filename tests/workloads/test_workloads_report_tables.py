"""Rows of a report."""

from __future__ import annotations

import pytest

from made_result import NASTY, TASKS, made_result
from outrider.workloads.report_tables import error_rows, glance_rows, task_rows, wait_rows
from outrider.workloads.tables import Figure


def test_every_arm_has_a_row_at_a_glance() -> None:
    """The first is held against none; of all together the slowest and the fastest round are told."""
    result = made_result()
    off, policy, _ = glance_rows(result)
    assert (off["arm"], off["/ off"], off["accept length"], off["wasted"]) == ("off", None, None, None)
    ratio, stretches = policy["/ off"], [one for one in result.stretches if one.arm == "policy"]
    assert isinstance(ratio, Figure) and ratio.value > 1.5
    slow, usual, fast = sorted((one.num_tokens or 0) / one.seconds for one in stretches)
    assert policy["tokens/s of all"] == Figure(usual, slow, fast)
    assert policy["drafter and k"] == "ngram k=4 ×27, off ×9"
    cell = result.cell("policy")
    assert cell is not None and cell.num_proposed is not None
    assert policy["wasted"] == cell.num_proposed - (cell.num_accepted or 0)


def test_tasks_keep_their_arms_together() -> None:
    """In the order of both; greedy texts are compared, sampled ones are not."""
    rows = task_rows(made_result())
    assert [(row["task"], row["arm"]) for row in rows[:4]] == [
        ("code", "off"), ("code", "policy"), ("code", "ngram k=4"), ("quote", "off"),
    ]  # fmt: skip
    assert [row["T"] for row in rows[::3]] == ["0", "0", "0.7", "1.2"]
    assert [row["same text"] for row in rows[:3]] == [None, "9 of 9", "9 of 9"]
    assert all(row["same text"] is None for row in rows[6:])


def test_the_most_frequent_plans_are_named() -> None:
    """Of those that a policy tried; the others are counted."""
    result = made_result()
    plans = {"ngram k=2": 9, "off": 4, "suffix k=2": 3, "ngram k=8": 1, "prediction k=2": 1}
    tried = [cell.model_copy(update={"plans": plans}) for cell in result.cells]
    row = glance_rows(result.model_copy(update={"cells": tried}))[1]
    assert row["drafter and k"] == "ngram k=2 ×9, off ×4, suffix k=2 ×3, 2 more"


def test_few_jobs_have_no_interval() -> None:
    """It would promise too much."""
    result = made_result()
    few = result.model_copy(
        update={
            "cells": [
                cell.model_copy(update={"accept_length": cell.accept_length.model_copy(update={"num_jobs": 3})})
                for cell in result.cells
                if cell.accept_length is not None
            ]
        }
    )
    lengths = [row["accept length"] for row in task_rows(few)]
    assert lengths and all(isinstance(one, Figure) and one.low is None for one in lengths)


def test_waits_are_of_everything_and_of_each_task() -> None:
    """All percentiles that the result holds."""
    result = made_result()
    rows = wait_rows(result)
    assert [row["task"] for row in rows[::3]] == ["all", *(task for task, _ in TASKS)]
    cell = result.cell("policy")
    assert cell is not None
    found = rows[1]["first token ms p99"]
    assert isinstance(found, Figure) and found.value == pytest.approx(cell.metrics["ttft_ms"].p99.value)


def test_failures_are_counted_by_kind() -> None:
    """With what the server said."""
    result = made_result()
    other = result.records[-1].model_copy(update={"status": None, "error": "refused"})
    rows = error_rows(result.model_copy(update={"records": [*result.records, other, other]}))
    assert rows == [
        {"arm": "ngram k=4", "status": None, "times": 2, "error": "refused"},
        {"arm": "ngram k=4", "status": "503", "times": 1, "error": NASTY},
    ]
