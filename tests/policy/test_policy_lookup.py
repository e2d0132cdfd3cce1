"""Look-ups replayed on text: counts of rounds that add up, and the engine's own drafter as the measure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core import MAX_K
from outrider.policy.lookup import replay, split_text, told_share

tokens = st.lists(st.integers(0, 3), max_size=60)


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


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
@given(tokens, tokens)
@settings(max_examples=100, deadline=None)
def test_rounds_write_the_answer(drafter: str, prompt: list[int], answer: list[int]) -> None:
    """Every round writes its accepted drafts and one token more; together they write the answer, no token more."""
    histogram = replay(drafter, prompt, answer)
    assert len(histogram) == MAX_K + 1
    assert sum((accepted + 1) * n for accepted, n in enumerate(histogram)) == len(answer)


def test_a_copy_is_accepted_and_new_text_is_not() -> None:
    """A prompt quoted back takes few rounds, numbers in order take one each."""
    passage = list(range(100, 140))
    assert sum(replay("ngram", passage, passage)) < 10
    assert sum(replay("suffix", passage, passage)) < 14
    assert replay("ngram", passage, list(range(30)))[0] == 30


@given(tokens, st.lists(st.integers(0, 3), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_it_agrees_with_the_engines_drafter(prompt: list[int], answer: list[int]) -> None:
    """Round by round the n-gram drafter of the engine has as many accepted."""
    from outrider.engine.drafters.ngram import NgramDrafter

    drafter, histogram, position = NgramDrafter(prompt), [0] * (MAX_K + 1), 0
    while position < len(answer):
        drafts = drafter.propose(MAX_K).token_ids
        limit = min(len(drafts), len(answer) - position - 1)
        accepted = next((i for i in range(limit) if drafts[i] != answer[position + i]), limit)
        histogram[accepted] += 1
        for token in answer[position : position + accepted + 1]:
            drafter.observe(token)
        position += accepted + 1
    assert replay("ngram", prompt, answer) == histogram
