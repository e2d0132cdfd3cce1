"""Scales and ticks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.plots.axes import Frame, Scale, is_wide, reach, room_for

SIZES = st.floats(1e-6, 1e9)


@given(low=st.floats(-1e6, 1e6), span=SIZES, share=st.floats(0, 1))
def test_a_linear_scale_keeps_proportions(low: float, span: float, share: float) -> None:
    """Also where it runs upwards, as y does; what lies outside stands at the edge."""
    scale = Scale(low, low + span, 200, 20)
    assert scale(low + share * span) == pytest.approx(200 - 180 * share, abs=0.1)
    assert (scale(low - span), scale(low + 2 * span)) == (200, 20)


def test_a_logarithmic_scale_gives_each_power_of_ten_as_much() -> None:
    """And names round numbers."""
    scale = Scale(1, 1000, 0, 300, is_log=True)
    assert [scale(value) for value in (1, 10, 100, 1000)] == pytest.approx([0, 100, 200, 300])
    assert scale.ticks() == [1, 3, 10, 30, 100, 300, 1000]


@given(low=st.floats(-1e6, 1e6), span=SIZES)
def test_ticks_are_few_and_within(low: float, span: float) -> None:
    """Whatever the values: a plot is neither bare nor crowded."""
    ticks = Scale(low, low + span, 0, 100).ticks()
    assert 1 <= len(ticks) <= 7 or span < 1e-9 * abs(low)
    assert all(low - 0.01 * span <= tick <= low + 1.01 * span for tick in ticks) or span < 1e-6 * abs(low)


@given(low=st.floats(1e-6, 1e6), ratio=st.floats(30, 1e9))
def test_logarithmic_ticks_are_few_and_within(low: float, ratio: float) -> None:
    """Of any span that is drawn so."""
    ticks = Scale(low, low * ratio, 0, 100, is_log=True).ticks()
    assert ticks
    assert all(low * 0.999 <= tick <= low * ratio * 1.001 for tick in ticks)


def test_reach_is_never_empty() -> None:
    """All values may be equal, and there may be none."""
    assert reach([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert reach([3.0, 1.0], from_zero=True) == (0.0, 3.0)
    assert [reach(values)[1] > reach(values)[0] for values in ([], [5.0], [0.0, 0.0], [-2.0])] == [True] * 4


def test_values_far_apart_want_a_logarithmic_axis() -> None:
    """Zero has no logarithm."""
    assert [is_wide(values) for values in ([1.0, 31.0], [1.0, 29.0], [0.0, 100.0], [])] == [True, False, False, False]


def test_a_frame_names_what_it_shows() -> None:
    """Ticks of both axes, or names for those of x, and both labels."""
    frame = Frame(Scale(0, 10, 40, 400), Scale(0, 1, 200, 20))
    own, named = "".join(frame.axes("seconds", "share")), "".join(frame.axes("tokens", "share", [(50.0, "≥12")]))
    assert all(f">{words}<" in own for words in ("seconds", "share", "0.4", "8"))
    assert ">≥12<" in named and ">8<" not in named
    assert room_for([0.0, 12345.0]) > room_for([0.0, 1.0])
