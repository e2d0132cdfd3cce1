"""Counting substrings against a slow, obvious implementation."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.suffixes import SuffixAutomaton

texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=25), max_size=4)


def occurrences(sequences: list[list[int]], part: list[int]) -> list[tuple[int, int]]:
    """(sequence, end) of each occurrence, oldest first."""
    size = len(part)
    return [
        (i, end) for i, s in enumerate(sequences) for end in range(size, len(s) + 1) if s[end - size : end] == part
    ]


@settings(max_examples=400, deadline=None)
@given(texts, st.lists(st.integers(0, 2), max_size=12), st.integers(1, 12))
def test_matches_and_followers_are_those_of_the_texts(
    sequences: list[list[int]], tail: list[int], depth: int
) -> None:
    """The longest suffix that occurs is found, and counts are exact for substrings of at most `depth` tokens."""
    automaton = SuffixAutomaton(depth)
    for sequence in sequences:
        automaton.start_sequence()
        automaton.extend(sequence)
    assert automaton.num_tokens == sum(map(len, sequences))
    found = dict((length, state) for state, length in automaton.matches(tail))
    occurring = [m for m in range(1, len(tail) + 1) if occurrences(sequences, tail[-m:])]
    assert max(found, default=0) == max(occurring, default=0)
    for length, state in found.items():
        part = tail[-length:]
        if length >= depth:
            continue
        follows = [
            (sequences[i][end], (i, end)) for i, end in occurrences(sequences, part) if end < len(sequences[i])
        ]
        counts = Counter(token for token, _ in follows)
        newest = {token: place for token, place in follows}
        assert {token: count for count, _, token, _ in automaton.followers(state)} == counts
        by_age = [token for _, token in sorted((at, token) for _, at, token, _ in automaton.followers(state))]
        assert by_age == sorted(newest, key=lambda token: newest[token])


def test_each_distinct_set_of_places_is_one_match() -> None:
    """Suffixes that occur at the same places are one candidate, the longest of them."""
    automaton = SuffixAutomaton(8)
    automaton.extend([1, 2, 3, 9, 2, 3])
    assert [length for _, length in automaton.matches([1, 2, 3])] == [3, 2]


def test_no_match_crosses_from_one_text_into_the_next() -> None:
    """The end of one answer and the beginning of another are not neighbours."""
    automaton = SuffixAutomaton(8)
    for sequence in ([1, 2], [3, 4]):
        automaton.start_sequence()
        automaton.extend(sequence)
    assert [length for _, length in automaton.matches([1, 2, 3, 4])] == [2]
    assert automaton.followers(next(automaton.matches([1, 2]))[0]) == []
