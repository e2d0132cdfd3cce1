"""The slices of traffic that count."""

from __future__ import annotations

from outrider.cli.bench.traffic import Slice, undisturbed


def test_slices_without_the_processor_count_for_no_setting() -> None:
    """Usual is what most slices have, whatever the number of threads; where none is usual all count."""
    usual, starved = Slice(12, 1.0, 1.9), Slice(12, 8.0, 4.0)
    assert undisturbed([[usual, usual, starved, usual], [usual, starved, usual, usual]]) == [0, 3]
    assert undisturbed([[usual, starved, Slice(0, 0.0, 0.0)]] * 2) == [0, 2]
    assert undisturbed([[usual, starved, Slice(0, 0.0, 0.0)], [starved, usual, Slice(0, 0.0, 0.0)]]) == [0, 1, 2]
    assert undisturbed([[usual, starved], [starved, usual], [usual, usual]]) == [0, 1]
