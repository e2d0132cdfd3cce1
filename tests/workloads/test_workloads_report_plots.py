"""What the plots of a report are made of."""

from __future__ import annotations

import re

import pytest

from made_result import made_result
from outrider.plots.svg import Plot
from outrider.workloads.report_plots import plots
from outrider.workloads.results import Result, Step


def plot_of(result: Result, key: str) -> Plot | None:
    return next((plot for plot in plots(result) if plot.labels.key == key), None)


def told(plot: Plot | None) -> dict[str, float]:
    """Values of bars by what is said of them."""
    assert plot is not None
    return {name: float(value) for name, value in re.findall(r"<title>([^<]+): ([\d.e-]+)</title>", plot.svg)}


def test_steps_and_accepted_drafts_are_shares() -> None:
    """Of each arm; an arm without drafts has no accepted ones."""
    result = made_result()
    steps, accepted = told(plot_of(result, "tokens-per-step")), told(plot_of(result, "accepted"))
    for arm in ("off", "policy", "ngram k=4"):
        assert sum(v for name, v in steps.items() if name.startswith(arm)) == pytest.approx(1, abs=0.01)
    assert steps["off, 1"] == 1
    assert sum(v for name, v in accepted.items() if name.startswith("policy")) == pytest.approx(1, abs=0.01)
    assert not any(name.startswith("off") for name in accepted)


def test_large_steps_share_the_last_bar() -> None:
    """So that a burst does not squeeze the others."""
    result = made_result(("policy",), with_error=False)
    burst = result.records[0].model_copy(update={"steps": [Step(at_s=0.1, num_tokens=n) for n in (1, 12, 13, 400)]})
    shown = told(plot_of(result.model_copy(update={"records": [burst]}), "tokens-per-step"))
    assert (shown["policy, 1"], shown["policy, ≥12"]) == (0.25, 0.75)


def test_a_server_that_does_not_count_has_its_tokens_spread() -> None:
    """Which the plot says; steps of unknown size are in no histogram."""
    result = made_result(("policy",), with_error=False)
    uncounted = [
        one.model_copy(update={"steps": [Step(at_s=step.at_s, num_tokens=None) for step in one.steps]})
        for one in result.records
    ]
    found = {plot.labels.key: plot for plot in plots(result.model_copy(update={"records": uncounted}))}
    assert "spread evenly" in found["throughput"].labels.text
    assert "tokens-per-step" not in found
    counted = plot_of(result, "throughput")
    assert counted is not None and "spread evenly" not in counted.labels.text


def test_throughput_has_a_line_for_each_round() -> None:
    """Of each arm."""
    plot = plot_of(made_result(), "throughput")
    assert plot is not None and plot.num_marks == 9


def test_failed_requests_are_in_no_distribution() -> None:
    """They have no first token, and would flatter the others."""
    result = made_result()
    failing = [one.model_copy(update={"error": "gone"}) for one in result.records]
    keys = [plot.labels.key for plot in plots(result.model_copy(update={"records": failing, "cells": []}))]
    assert "first-token" not in keys and "pauses" not in keys
