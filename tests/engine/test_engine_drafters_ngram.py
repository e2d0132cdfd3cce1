"""Prompt look-up against a slow, obvious implementation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.drafters.ngram import DRAFTS_PER_MATCHED, MAX_MATCH, MIN_MATCH, NgramDrafter
from outrider.suffixes import DOUBT


def obvious_proposal(tokens: list[int], k: int) -> tuple[int, ...]:
    """What followed the longest earlier occurrence of the text's end; the newest of equally long ones."""
    best_length, best_end = 0, None
    for end in range(MIN_MATCH, len(tokens)):
        length = 0
        while length < min(MAX_MATCH, end) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= MIN_MATCH and length >= best_length:
            best_length, best_end = length, end
    if best_end is None or k < 1:
        return ()
    k = min(k, DRAFTS_PER_MATCHED * best_length)
    longer = list(tokens)
    while len(longer) < best_end + k:  # a match that runs into the end goes on repeating
        longer.append(longer[best_end + len(longer) - len(tokens)])
    return tuple(longer[best_end : best_end + k])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=30), st.integers(0, 8))
def test_proposals_follow_the_longest_newest_match(tokens: list[int], k: int) -> None:
    """For every text and every k, also when the text arrived token by token."""
    drafter = NgramDrafter(tokens[: len(tokens) // 2])
    for token in tokens[len(tokens) // 2 :]:
        drafter.observe(token)
    assert drafter.propose(k).token_ids == obvious_proposal(tokens, k)


def test_a_text_of_one_repeated_token_is_continued() -> None:
    """A loop is drafted to the full length, beyond the end of the text."""
    assert NgramDrafter([7] * 5).propose(6).token_ids == (7,) * 6


def test_chances_follow_the_match_and_what_became_of_earlier_drafts() -> None:
    """A longer match is trusted further; each draft that was right raises the trust, and each wrong one lowers it."""
    drafter = NgramDrafter([1, 2, 3, 4, 5, 6, 7, 8, 1, 2])
    chances = drafter.propose(4).chances
    assert chances == pytest.approx([2 / (2 + DOUBT), 2 / (2 + DOUBT) * 3 / (3 + DOUBT), *chances[2:]])
    for token in (3, 4):
        drafter.observe(token)
    longer = drafter.propose(4).chances
    doubt = DOUBT / (1 + 1 / 2 + 1 / 3)
    assert longer[0] == pytest.approx(4 / (4 + doubt)) and longer[0] > chances[0]
    drafter.observe(9)  # wrong: the draft was 5
    for token in (1, 2):
        drafter.observe(token)
    wrong = drafter.propose(4).chances
    doubt = (DOUBT + 1) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert wrong[0] == pytest.approx(2 / (2 + doubt))


def test_no_earlier_occurrence_gives_no_draft() -> None:
    """Nothing is proposed rather than something unlikely."""
    assert len(NgramDrafter([1, 2, 3, 4]).propose(4)) == 0
