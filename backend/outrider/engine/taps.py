"""Hidden states that a forward pass leaves behind for drafters that read the target's own; none when none asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


class Taps:
    """Point i < num_layers is what layer i takes in, point num_layers what the output matrix takes in."""

    def __init__(self, points: Iterable[int] = ()) -> None:
        self.points = frozenset(points)
        self._states: dict[int, torch.Tensor] = {}
        """By point, [R, hidden] of all rows of the step."""

    def take(self, point: int, states: torch.Tensor) -> None:
        """Copied where the point is asked for: a pass adds to its states in place."""
        if point in self.points:
            self._states[point] = states.clone()

    def features(self, points: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        """[len(rows), len(points) * hidden], the points side by side."""
        return torch.cat([self._states[point][list(rows)] for point in points], dim=-1)
