"""The four charts: where marks stand, and what is drawn of hardly anything."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from outrider.plots.charts import WIDTH, Axes, Series, bar_chart, heat_map, interval_chart, line_chart
from outrider.plots.svg import Labels, Plot

LABELS = Labels("key", "Title", "across", "up", "what it shows")


def marks(plot: Plot) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(plot.svg)
    return [one for one in root.iter() if one.get("class", "").split(" ")[0] == "mark"]


def points(mark: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in mark.get("points", "").split())]


def test_a_line_goes_through_its_points() -> None:
    """To the right and upwards, within the plot."""
    plot = line_chart(LABELS, [Series("a", [(0, 0), (5, 1), (10, 4)]), Series("b", [(0, 2), (10, 2)])])
    first, second = (points(mark) for mark in marks(plot))
    assert first[1][0] == pytest.approx((first[0][0] + first[2][0]) / 2)
    assert first[0][1] > first[1][1] > first[2][1]
    assert second[0][1] == second[1][1] == pytest.approx((first[0][1] + first[2][1]) / 2)
    assert all(0 <= x <= WIDTH for x, _ in first)


def test_an_axis_is_logarithmic_where_that_is_allowed_and_needed() -> None:
    """The middle of 1 and 10,000 is 100 then."""
    series = [Series("a", [(1, 0), (100, 0.5), (10_000, 1)])]
    ends = [points(marks(line_chart(LABELS, series, Axes(may_be_log=may)))[0]) for may in (True, False)]
    assert ends[0][1][0] == pytest.approx((ends[0][0][0] + ends[0][2][0]) / 2, abs=0.1)
    assert ends[1][1][0] < ends[1][0][0] + 10


def test_one_point_is_a_dot() -> None:
    """A line of it would show nothing."""
    (mark,) = marks(line_chart(LABELS, [Series("a", [(3, 1)])]))
    assert mark.tag.endswith("circle")


def test_series_of_one_name_look_alike() -> None:
    """And stand in the legend once."""
    plot = line_chart(
        LABELS, [Series("a", [(0, 0), (1, 1)]), Series("a", [(0, 1), (1, 0)]), Series("b", [(0, 0), (1, 2)])]
    )
    assert [mark.get("class") for mark in marks(plot)] == ["mark line s0", "mark line s0", "mark line s1"]
    assert plot.svg.count(">a</text>") == 1


def test_bars_are_as_high_as_their_values() -> None:
    """Side by side, in the order of the plots they belong to."""
    plot = bar_chart(LABELS, ["1", "2"], {"b": [4.0, 1.0], "a": [2.0, 0.0]}, order=["a", "b"])
    found = [(mark.get("class"), float(mark.get("height", ""))) for mark in marks(plot)]
    assert [name for name, _ in found] == ["mark fill s0"] * 2 + ["mark fill s1"] * 2
    assert found[0][1] == pytest.approx(found[2][1] / 2)
    assert found[1][1] == 0
    lefts = [float(mark.get("x", "")) for mark in marks(plot)]
    assert lefts[0] < lefts[2] < lefts[1] < lefts[3]


def test_many_categories_name_only_some() -> None:
    """So that names do not lie on each other."""
    names = [f"category {i}" for i in range(30)]
    plot = bar_chart(LABELS, names, {"a": [1.0] * 30})
    assert plot.num_marks == 30
    assert 2 <= sum(f">{name}</text>" in plot.svg for name in names) <= 6


def test_intervals_stand_in_rows() -> None:
    """From zero on; the mark is at the value, between the ends."""
    plot = interval_chart(LABELS, {"row one": {"a": (10, 5, 20), "b": (20, 20, 20)}, "row two": {"b": (5, 4, 6)}})
    at = [(float(mark.get("cx", "")), float(mark.get("cy", ""))) for mark in marks(plot)]
    assert at[0][0] < at[1][0]
    assert at[0][1] < at[1][1] < at[2][1]
    assert all(words in plot.svg for words in ("row one", "row two", "10, 5 to 20"))


def test_a_heat_map_shows_each_number_and_what_is_missing() -> None:
    """Darker for more; white on dark, dark on light."""
    plot = heat_map(LABELS, {"low": [1.0, None], "high": [2.0, 4.0]}, ["first", "second"])
    assert [mark.get("fill") for mark in marks(plot)] == ["#f3f7fc", "#a5c6e5", "#0b3060"]
    assert plot.svg.count('class="on-dark"') == 1
    assert plot.svg.count('class="missing"') == 1
    assert all(words in plot.svg for words in ("high, second: 4", "low, second: not measured", ">4.00<"))


@pytest.mark.parametrize("num", [1, 2, 4, 6])
def test_a_heat_map_of_few_columns_is_as_wide_as_other_charts(num: int) -> None:
    """So that it shrinks to a phone like these; one of many columns is wider."""
    columns = [f"column {i}" for i in range(20)]
    assert heat_map(LABELS, {"row": [1.0] * num}, columns[:num]).width == pytest.approx(WIDTH)
    assert heat_map(LABELS, {"row": [1.0] * 20}, columns).width > WIDTH + 1


@pytest.mark.parametrize(
    "empty",
    [
        line_chart(LABELS, []), line_chart(LABELS, [Series("a", [])]), bar_chart(LABELS, [], {}),
        interval_chart(LABELS, {}), heat_map(LABELS, {}, []), heat_map(LABELS, {"a": [None]}, ["b"]),
    ],
)  # fmt: skip
def test_nothing_is_drawn_of_nothing(empty: Plot) -> None:
    """And says so, so that it can be left out."""
    assert empty.num_marks == 0
    ElementTree.fromstring(empty.svg)
