"""Markup of plots."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.plots.svg import NUM_LOOKS, Labels, cut, element, legend, looks_of, number, plot, text

WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40)


@given(words=WORDS)
def test_words_are_never_markup(words: str) -> None:
    """In text and in attributes, whatever they are."""
    drawn = plot(Labels("key", words, words, words, words), (300, 100), [text(1, 2, words, class_=words)])
    root = ElementTree.fromstring(drawn.svg)
    found = list(root.iter("{http://www.w3.org/2000/svg}text"))
    assert found[-1].text == (words or None)
    assert root[1].text == (words or None)


def test_marks_are_counted() -> None:
    """What else is drawn is none."""
    parts = [
        element("rect", class_="mark fill s0"),
        element("rect", class_="missing"),
        element("line", class_="grid"),
    ]
    assert plot(Labels("key", "title", "x", "y", "words"), (300, 100), parts).num_marks == 1


def test_numbers_are_short() -> None:
    """No trailing zeros, no more than two decimals; large ones in powers of ten."""
    assert [number(value) for value in (1.0, 0.5, 1 / 3, 1200.0, 2e6, 0.0)] == [
        "1",
        "0.5",
        "0.33",
        "1200",
        "2e+06",
        "0",
    ]


def test_what_does_not_fit_is_cut() -> None:
    """With an ellipsis for the rest."""
    assert cut("short", 100) == "short"
    assert cut("a very long name", 40) == "a ver…"


def test_a_legend_needs_two_series_and_breaks_its_lines() -> None:
    """It grows downwards."""
    assert legend({"alone": 0}, 300) == ("", 0.0)
    one, two = legend({"a": 0, "b": 1}, 300), legend({"a" * 20: 0, "b" * 20: 1}, 200)
    assert two[1] > one[1]
    assert "s1" in one[0]


def test_series_look_alike_in_plots_that_share_an_order() -> None:
    """Also where the first of them is missing; without an order they are numbered."""
    assert looks_of(["c", "b"], ["a", "b", "c"]) == {"b": 1, "c": 2}
    assert looks_of(["c", "b", "c"]) == {"c": 0, "b": 1}
    assert max(looks_of([str(i) for i in range(20)]).values()) == NUM_LOOKS - 1


@pytest.mark.parametrize("size", [(1.0, 1.0), (420.0, 99.5)])
def test_a_plot_scales_with_its_page(size: tuple[float, float]) -> None:
    """It has proportions and no size of its own."""
    root = ElementTree.fromstring(plot(Labels("k", "t", "x", "y", "d"), size, []).svg)
    assert root.get("viewBox", "").startswith(f"0 0 {number(size[0])} ")
    assert root.get("width") is None
