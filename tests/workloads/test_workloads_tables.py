"""Tables as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.workloads.tables import Figure, Value, html_table, markdown_table, markdown_text, shown

WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=30)


class Cells(HTMLParser):
    """The text of every cell of a table's body."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()
        self.is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.is_inside = tag in ("td", "th")
        if self.is_inside:
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        self.is_inside = False

    def handle_data(self, data: str) -> None:
        if self.is_inside:
            self.found[-1] += data


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (True, "yes"), (False, "no"), (3, "3"), ("words", "words"), (1234.56, "1235"),
        (123.456, "123.5"),
        (12.345, "12.35"), (0.1234, "0.12"), (0.01234, "0.0123"), (-5.678, "-5.68"), (0.0, "0.0000"),
        (Figure(2.5, 2.0, 3.0), "2.50 (2.00–3.00)"), (Figure(2.5), "2.50"),
    ],
)  # fmt: skip
def test_figures_have_as_many_digits_as_a_person_reads(value: Value, text: str) -> None:
    """What was not measured is a dash, and no zero."""
    assert shown(value) == text


@given(words=WORDS)
def test_any_text_is_itself_in_html(words: str) -> None:
    """Neither markup nor lost."""
    parser = Cells()
    parser.feed(html_table(words, [{"name": words, words + "x": words}]))
    assert parser.found[-2:] == [words, words]
    assert parser.tags == {"p", "div", "table", "thead", "tbody", "tr", "th", "td"}


@given(words=WORDS)
def test_any_text_keeps_a_markdown_table_whole(words: str) -> None:
    """One line for each row, with as many cells."""
    lines = markdown_table([{"a": words, "b": 1.5}, {"a": "x", "c": None}]).splitlines()
    assert len(lines) == 4
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines} == {4}


def test_columns_are_those_of_all_rows() -> None:
    """In the order of their first appearance; those of figures stand to the right."""
    head, rule, first, second = markdown_table(
        [{"a": "x", "b": 1}, {"a": "y", "c": Figure(2.0, 1.0, 3.0)}]
    ).splitlines()
    assert (head, rule) == ("| a | b | c |", "| --- | ---: | ---: |")
    assert (first, second) == ("| x | 1 | - |", "| y | - | 2.00 (1.00–3.00) |")


def test_a_figure_carries_its_exact_value() -> None:
    """Beside the rounded one and its interval; the first cell of a row is its heading."""
    html = html_table("says", [{"arm": "off", "speed": Figure(1 / 3, 0.25, 0.5), "num": 7}])
    assert f'<data value="{1 / 3!r}">0.33</data> <span class="interval">0.25–0.50</span>' in html
    assert '<data value="7">7</data>' in html
    assert '<th scope="row">off</th>' in html


def test_rows_of_another_thing_begin_with_a_line() -> None:
    """Where the first column changes."""
    html = html_table("says", [{"task": "a"}, {"task": "a"}, {"task": "b"}])
    assert [part.startswith(" class=next") for part in html.split("<tr")[2:]] == [False, False, True]


def test_letters_that_mean_something_to_markdown_are_escaped() -> None:
    """A line break would end a row."""
    assert markdown_text("a|b\n<i>*_`") == r"a\|b \<i\>\*\_\`"
