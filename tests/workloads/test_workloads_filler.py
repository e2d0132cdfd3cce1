"""Text that lengthens prompts: as long as asked, the same for a seed, and of words that follow one another."""

from __future__ import annotations

from itertools import pairwise

import pytest

from outrider.config import packaged_data
from outrider.workloads.filler import CHARS_PER_TOKEN, Filler
from outrider.workloads.suite import load_prompts

TEXTS = [prompt.text for prompt in load_prompts(packaged_data("workloads") / "tasks.yaml")]
PAIRS = {pair for text in TEXTS for pair in pairwise(text.split())}


@pytest.mark.parametrize("num_tokens", [1, 40, 3000])
def test_it_is_as_long_as_asked(num_tokens: int) -> None:
    """To a word."""
    text = Filler(TEXTS).text(num_tokens, "a")
    longest = max(len(word) for text in TEXTS for word in text.split())
    assert 0 <= len(text) + 1 - num_tokens * CHARS_PER_TOKEN <= longest + 1


def test_one_seed_gives_one_text() -> None:
    """Another seed another one."""
    texts = [Filler(TEXTS).text(200, seed) for seed in ("a", "a", "b")]
    assert texts[0] == texts[1] != texts[2]


def test_words_follow_one_another_as_in_the_texts() -> None:
    """But where a text ends; and what is written does not run on as one of the texts does."""
    words = Filler(TEXTS).text(2000, "a").split()
    pairs = list(pairwise(words))
    assert sum(pair in PAIRS for pair in pairs) > 0.95 * len(pairs)
    assert not any(text in " ".join(words) for text in TEXTS)


def test_the_prompt_itself_stands_last() -> None:
    """A prompt that is long enough stays as it is."""
    filler = Filler(TEXTS)
    assert filler.lengthened("Say yes.", 100, "a").endswith("\n\nSay yes.")
    assert filler.lengthened("Say yes.", 2, "a") == "Say yes."


def test_texts_without_words_are_refused() -> None:
    """There is nothing to walk over."""
    with pytest.raises(ValueError, match="words"):
        Filler(["", "  "])
