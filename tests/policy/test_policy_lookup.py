"""Text as pieces, and what a look-up in it would have told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.policy.lookup import split_text, told_share


def test_text_is_split_as_vocabularies_do() -> None:
    """Words with their space, digits one by one, runs of signs; nothing is lost."""
    assert split_text("Hello, my 42 cats!\n") == ["Hello", ",", " my", " 4", "2", " cats", "!", "\n"]


@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_pieces_join_to_the_text(text: str) -> None:
    """Any text at all."""
    assert "".join(split_text(text)) == text


def test_told_share() -> None:
    """A repeated stretch is told from its third token on; fresh text never."""
    assert told_share([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(2 / 6)
    assert told_share(list(range(50))) == 0.0
    assert told_share([1, 2]) == 0.0
