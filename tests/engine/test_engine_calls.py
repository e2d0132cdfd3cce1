"""Calls of tools in an answer's text: told from what is shown, however the text arrives and whatever they hold."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.calls import BEGIN, END, CallReader


def call(name: str = "add", **arguments: Any) -> str:
    return f'{BEGIN}\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n{END}'


def read(text: str, cuts: list[int], *, is_single: bool = False) -> tuple[str, list[tuple[str, Any]]]:
    """What is shown of a text that arrives in pieces, and its calls."""
    edges = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    reader, shown, calls = CallReader(is_single=is_single), "", []
    for a, b in itertools.pairwise(edges):
        piece, found = reader.append(text[a:b])
        shown, calls = shown + piece, calls + found
    piece, found = reader.append("", is_last=True)
    return shown + piece, [(one.name, json.loads(one.arguments)) for one in calls + found]


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("Hello.", "Hello.", []),
        (call(a=1), "", [("add", {"a": 1})]),
        (f"First:\n{call(a=1)}\n{call('now')}\n", "First:\n", [("add", {"a": 1}), ("now", {})]),
        (f"{call(a=1)}\nDone.", "\nDone.", [("add", {"a": 1})]),
        (f'{BEGIN}{{"name": "now"}}{END}', "", [("now", {})]),
        (f'{BEGIN}{{"name": "now"}}', "", [("now", {})]),
        (f"{BEGIN}{{bad}}{END} and on", f"{BEGIN}{{bad}}{END} and on", []),
        (f'{BEGIN}{{"name": "add", "argum', f'{BEGIN}{{"name": "add", "argum', []),
        (f'{BEGIN}{{"name": "add", "arguments": [1]}}{END}', f'{BEGIN}{{"name": "add", "arguments": [1]}}{END}', []),
        (f"{BEGIN}3{END}", f"{BEGIN}3{END}", []),
        (call(a=f"x{END}y"), "", [("add", {"a": f"x{END}y"})]),
        (call(a=f"{END}{BEGIN}") + call("now"), "", [("add", {"a": f"{END}{BEGIN}"}), ("now", {})]),
        (call(**{f'"{END}': {"b": f"\\\\{END}"}}), "", [("add", {f'"{END}': {"b": f"\\\\{END}"}})]),
        (f'{BEGIN}{{"s": "{END}', f'{BEGIN}{{"s": "{END}', []),
        (f"Write {BEGIN} and then {call(a=1)}", f"Write {BEGIN} and then ", [("add", {"a": 1})]),
        (f'{BEGIN}{{"name": "now"}} so {END}', f'{BEGIN}{{"name": "now"}} so {END}', []),
        ("a <b> <tool_cal", "a <b> <tool_cal", []),
        ("", "", []),
    ],
)
@given(cuts=st.lists(st.integers(0, 120), max_size=8))
def test_calls_are_told_from_text(text: str, shown: str, calls: list[Any], cuts: list[int]) -> None:
    """However the text arrives; what is no call is shown as it is, and nothing is shown of what becomes one."""
    assert read(text, cuts) == (shown, calls)


PARTS = [
    call(a=1), call(a=END), call("now"), BEGIN, END, "<tool", " ", "\n", "x", "{", '"', '{"name": "now"}',
    '{"name": "',
]  # fmt: skip


@given(
    parts=st.lists(st.sampled_from(PARTS), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_reading_does_not_depend_on_the_cuts(parts: list[str], cuts: list[int]) -> None:
    """Any mixture of marks, halves of marks and text reads in pieces as it reads whole."""
    text = "".join(parts)
    assert read(text, cuts) == read(text, [])


@given(arguments=st.dictionaries(st.text(), st.text() | st.sampled_from([END, BEGIN, f'"}}}}{END}']), max_size=4))
def test_arguments_may_hold_anything(arguments: dict[str, str]) -> None:
    """A call ends where its JSON does: marks, quotes and braces inside its strings are the arguments' own."""
    assert read(f"a{call('f', given=arguments)}b", []) == ("ab", [("f", {"given": arguments})])


def test_text_that_is_no_call_is_not_held_back() -> None:
    """A mark that no object follows is shown as soon as that is known."""
    reader = CallReader()
    assert reader.append(f"Write {BEGIN}") == ("Write ", [])
    assert reader.append(" first") == (f"{BEGIN} first", [])


def test_nesting_without_end_is_text() -> None:
    """What no parser would read is shown as it is."""
    text = BEGIN + '{"a":' * 2000 + f'"{END}'
    assert read(text, []) == (text, [])


@given(cuts=st.lists(st.integers(0, 120), max_size=8))
def test_only_the_first_call_counts_where_one_is_allowed(cuts: list[int]) -> None:
    """What is no call does not count, and what follows the call is neither shown nor called."""
    text = f"Use {END} {BEGIN}{{bad}}{END}\n{call(a=1)}\n{call('now')} so"
    assert read(text, cuts, is_single=True) == (f"Use {END} {BEGIN}{{bad}}{END}\n", [("add", {"a": 1})])
