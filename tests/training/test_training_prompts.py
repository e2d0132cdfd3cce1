"""Prompts come again, are never the same twice, and part into training and held-out ones by their words."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from itertools import islice

from outrider.training.prompts import HELD_OUT_EVERY, OWN, is_held_out, prompts

TASKS = {"chat", "code", "maths", "translate", "summarise", "extract", "tools", "creative"}


def test_prompts_are_of_all_kinds_and_come_again() -> None:
    """The same seed gives the same prompts; each kind has its share, greedy and warm; half have no text."""
    found = list(islice(prompts(1), 800))
    assert found == list(islice(prompts(1), 800))
    assert {prompt.temperature for prompt in found} == {0.0, 0.8}
    assert all((prompt.task == OWN) == (prompt.text == "") for prompt in found)
    counts = Counter(prompt.task for prompt in found)
    assert 350 < counts.pop(OWN) < 450
    assert counts.keys() == TASKS and min(counts.values()) > 30


def test_no_text_comes_twice() -> None:
    """Also where few are possible, so that none is both trained on and held out."""
    texts = [prompt.text for prompt in islice(prompts(), 4000) if prompt.text]
    assert len(set(texts)) == len(texts)
    assert len({prompt.index for prompt in islice(prompts(), 4000)}) == 4000


def test_the_held_out_are_chosen_by_their_words() -> None:
    """A twentieth of every kind, by SHA-256, whatever the seed."""
    found = [prompt for prompt in islice(prompts(), 4000) if prompt.text]
    held_out = [prompt for prompt in found if is_held_out(prompt.text)]
    assert {prompt.task for prompt in held_out} == TASKS
    assert 0.03 < len(held_out) / len(found) < 0.07
    for prompt in found[:50]:
        assert is_held_out(prompt.text) == (
            int(hashlib.sha256(prompt.text.encode()).hexdigest(), 16) % HELD_OUT_EVERY == 0
        )
    others = {prompt.text for prompt in islice(prompts(3), 4000)}
    assert not {prompt.text for prompt in held_out} & {text for text in others if not is_held_out(text)}


def test_nothing_is_compared_with_itself() -> None:
    """Nor is there a train from a place to the same place."""
    pairs = re.compile(r"Compare (.+) with (.+)\.|between (\w+) and (\w+) leave|from (\w+) to (\w+)")
    found = [match.groups() for prompt in islice(prompts(), 4000) for match in pairs.finditer(prompt.text)]
    named = [[name for name in groups if name is not None] for groups in found]
    assert len(named) > 100 and all(one != other for one, other in named)
