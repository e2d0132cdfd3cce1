"""Noise per position: uniform, independent, and the same for everybody who asks."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from outrider.speculation.noise import uniform, uniforms


def test_numbers_are_uniform_over_positions_and_over_seeds() -> None:
    """Neither the positions of one seed nor the seeds of one position deviate from the uniform law."""
    over_positions = [uniform(7, position) for position in range(20_000)]
    over_seeds = [uniform(seed, 0) for seed in range(20_000)]
    for sample in (over_positions, over_seeds):
        assert stats.kstest(sample, "uniform").pvalue > 1e-3


def test_neighbours_are_independent() -> None:
    """Successive positions, and the same position of successive seeds, show no correlation."""
    grid = np.array([[uniform(seed, position) for position in range(200)] for seed in range(200)])
    for a, b in ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:]), (grid[:-1, 1:], grid[1:, :-1])):
        counts = np.histogram2d(a.ravel(), b.ravel(), bins=8, range=((0, 1), (0, 1)))[0]
        assert stats.chisquare(counts.ravel()).pvalue > 1e-3


def test_a_stretch_of_positions_equals_its_parts() -> None:
    """How positions are grouped into steps makes no difference."""
    assert torch.equal(uniforms(3, 5, 4), torch.cat([uniforms(3, 5, 1), uniforms(3, 6, 3)]))


def test_negative_and_large_seeds_are_taken_modulo_2_64() -> None:
    """Any integer is a seed."""
    assert uniform(-1, 0) == uniform(2**64 - 1, 0)
    assert 0.0 <= uniform(10**30, 3) < 1.0
