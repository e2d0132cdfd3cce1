"""Text as pieces, and what a look-up in it would have told."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outrider.core import SpecStats
from outrider.engine.drafters.ngram import NgramDrafter
from outrider.engine.drafters.suffix import SuffixDrafter, SuffixStore
from outrider.policy.lookup import Replay, Written, split_text, told_share
from outrider.speculation.proposal import PointMass, TopKTree


def replayed(written: Written, k: int, drafter: str = "ngram") -> SpecStats | None:
    replay = Replay(drafter, k)
    for _ in replay.rounds(written):
        pass
    return replay.stats


def path_along(tree: PointMass | TopKTree, answer: list[int]) -> list[int]:
    """The nodes of a proposal that the answer's tokens go along, from the root."""
    path = [-1]
    while follow := [
        i for i, up in enumerate(tree.parents) if up == path[-1] and tree.token_ids[i] == answer[len(path) - 1]
    ]:
        path += follow[:1]
    return path[1:]


def test_text_is_split_as_vocabularies_do() -> None:
    """Words with their space, digits one by one, runs of signs; nothing is lost."""
    assert split_text("Hello, my 42 cats!\n") == [b"Hello", b",", b" my", b" 4", b"2", b" cats", b"!", b"\n"]


@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_pieces_join_to_the_text(text: str) -> None:
    """Any text at all."""
    assert b"".join(split_text(text)) == text.encode()


def test_told_share() -> None:
    """A repeated stretch is told from its third token on, whatever else followed its pairs; fresh text never."""
    assert told_share([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(2 / 6)
    assert told_share([1, 2, 3, 1, 2, 4, 1, 2, 3]) == pytest.approx(1 / 7)
    assert told_share(list(range(50))) == 0.0
    assert told_share([1, 2]) == 0.0


def test_text_without_spaces_is_split_by_character() -> None:
    """A repeated clause of Chinese is told, and typographic signs are no part of words."""
    assert told_share(split_text("天空是蓝色的，草地是绿色的。" * 3)) > 0.5
    assert split_text("“so”") == ["“".encode(), b"so", "”".encode()]


def test_a_copy_is_replayed_as_all_but_certain() -> None:
    """Once the first pair is written every draft is right; a text that shares no pair is never drafted."""
    prompt = "Repeat this. The keeper climbed the old steps every evening to light the lamp in the fog."
    copied = replayed(Written.of(prompt, prompt[13:]), 4)
    assert copied is not None and copied.accept_length > 2.5
    fresh = replayed(Written(range(20), range(100, 150)), 4)
    assert fresh is not None and (fresh.num_proposed, fresh.num_accepted) == (0, 0)
    assert replayed(Written.of(prompt, "No"), 4) is None


@given(
    st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), min_size=3, max_size=40), st.integers(1, 8)
)
@settings(max_examples=100, deadline=None)
def test_a_replay_is_what_the_drafter_would_have_shown(prompt: list[int], answer: list[int], k: int) -> None:
    """The engine's own look-up on the same tokens, round by round, as long as no pair is frequent."""
    assume(max(Counter(pairwise([*prompt, *answer])).values()) <= 8)
    drafter, at, histogram = NgramDrafter([*prompt, answer[0]]), 1, [0] * (k + 1)
    while at < len(answer) - 1:
        drafts = drafter.propose(min(k, len(answer) - 1 - at)).token_ids
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == answer[at + accepted]:
            accepted += 1
        for token in answer[at : at + accepted + 1]:
            drafter.observe(token)
        histogram[accepted] += 1
        at += accepted + 1
    stats = replayed(Written(prompt, answer), k)
    assert stats is not None and stats.histogram == tuple(histogram)


@given(
    st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), min_size=3, max_size=40), st.integers(1, 8)
)
@settings(max_examples=100, deadline=None)
def test_suffix_is_replayed_by_its_own_rule(prompt: list[int], answer: list[int], k: int) -> None:
    """The engine's own trees on the same tokens, round by round."""
    drafter, at, histogram, num_proposed = SuffixDrafter(prompt, SuffixStore(), ""), 1, [0] * (k + 1), 0
    by_draft = [0] * k
    drafter.observe(answer[0])
    while at < len(answer) - 1:
        tree = drafter.propose(min(k, len(answer) - 1 - at))
        path = path_along(tree, answer[at:])
        accepted = len(path)
        for node in path:
            by_draft[node] += 1
        for token in answer[at : at + accepted + 1]:
            drafter.observe(token)
        histogram[accepted] += 1
        num_proposed += len(tree.token_ids)
        at += accepted + 1
    stats = replayed(Written(prompt, answer), k, "suffix")
    assert stats is not None and (stats.histogram, stats.num_proposed) == (tuple(histogram), num_proposed)
    assert stats.by_draft == tuple(by_draft)


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_a_replay_is_bounded(drafter: str) -> None:
    """Whatever the lengths: no more rounds than tokens that are looked at."""
    stats = replayed(Written(["a", "b"] * 100_000, list(range(100_000))), 8, drafter)
    assert stats is not None and stats.num_verify_steps <= 256
