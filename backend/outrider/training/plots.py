"""Plots of a training run."""

from __future__ import annotations

from outrider.plots.charts import Axes, Series, line_chart
from outrider.plots.svg import Labels, Plot, marked
from outrider.training.train import TrainState


def plots_of(state: TrainState) -> list[Plot]:
    """Loss, and agreement at each depth on held-out texts, over steps."""
    loss = Labels("loss", "Training loss", "step", "loss", "Loss of each step.")
    rates = Labels(
        "agreement", "Top-1 agreement with the target, held out", "step", "share of tokens",
        "How often the likeliest draft token is the target's, by its place in the draft.",
    )  # fmt: skip
    num_depths = len(state.agreements[0][1]) if state.agreements else 0
    depths = [
        Series(f"draft token {depth + 1}", [(step, found[depth]) for step, found in state.agreements])
        for depth in range(num_depths)
    ]
    return marked([line_chart(loss, [Series("loss", state.losses)]), line_chart(rates, depths, Axes((0.0, 1.0)))])
