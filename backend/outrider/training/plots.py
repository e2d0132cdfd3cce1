"""Pictures of a training run; needs matplotlib, which nothing else does."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.training.train import TrainState


def can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def plot(state: TrainState, path: Path) -> None:
    """Loss, and agreement at each depth on held-out texts, over steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    loss, agreement = figure.subplots(1, 2)
    loss.plot([step for step, _ in state.losses], [value for _, value in state.losses])
    loss.set(xlabel="step", title="training loss")
    for depth in range(len(state.agreements[0][1]) if state.agreements else 0):
        values = [rates[depth] for _, rates in state.agreements]
        agreement.plot([step for step, _ in state.agreements], values, label=f"draft token {depth + 1}")
    agreement.set(xlabel="step", title="top-1 agreement with the target, held out", ylim=(0, 1))
    agreement.legend()
    figure.savefig(path, dpi=100)


def draw_heat_map(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Rows of tasks and temperatures, columns of drafters, accept lengths as colours and numbers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in ("task", "T")]
    values = [[row.get(name, float("nan")) for name in columns] for row in rows]
    figure = Figure(figsize=(2 + 0.7 * len(columns), 2 + 0.3 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(values, aspect="auto", cmap="viridis")
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right")
    axes.set_yticks(range(len(rows)), [f"{row['task']} T {row['T']}" for row in rows])
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            axes.text(x, y, f"{value:.1f}", ha="center", va="center", color="white", fontsize=7)
    figure.colorbar(image, label="accept length")
    figure.savefig(path, dpi=110)
