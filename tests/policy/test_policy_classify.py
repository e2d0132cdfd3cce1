"""The classifier: own examples per task, and Spec-Bench's prompts where they are at hand."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from not_run import not_run
from outrider.core import TASKS
from outrider.policy.classify import classify

#: Where Spec-Bench's questions are, one JSON object a line; they do not ship.
SPEC_BENCH = os.environ.get("OUTRIDER_SPEC_BENCH")
#: The tasks that are right, by Spec-Bench's category; plain questions, as of its other categories, are chat.
EXPECTED = {
    "coding": {"code", "edit"},
    "extraction": {"extract"},
    "math": {"maths"},
    "math_reasoning": {"maths"},
    "rag": {"rag"},
    "roleplay": {"creative", "chat"},
    "summarization": {"summarise"},
    "translation": {"translate"},
    "writing": {"creative", "chat", "edit"},
}
#: What the classifier claims, and Spec-Bench's categories of it.
CLAIMED = {
    "code": {"coding"},
    "maths": {"math", "math_reasoning"},
    "translation": {"translation"},
    "summarisation": {"summarization"},
    "RAG": {"rag"},
    "extraction": {"extraction"},
    "chat and creative": {"writing", "roleplay", "reasoning", "stem", "humanities", "qa"},
    "creative alone": {"writing", "roleplay"},
}
FENCE = "```\ndef total(items):\n    return sum(items)\n```"
PASSAGE = "The river rises in the hills and flows past four towns before it meets the sea. " * 20

EXAMPLES = [
    ("quote", "Quote this text back and then summarise it:\n\nThe tide comes in twice a day."),
    ("quote", "Please repeat the following paragraph exactly.\n\nAll is well."),
    ("quote", f"Give me this function verbatim:\n{FENCE}"),
    ("code", "Write a Python function that merges two sorted lists."),
    ("code", "def fibonacci(n):\n    "),
    ("code", f"What does this do?\n{FENCE}"),
    ("code", "How do I read a file line by line in Rust?"),
    ("code", "Write a function that extracts e-mail addresses and returns JSON."),
    ("edit", f"Rename `items` to `prices` and add a docstring.\n{FENCE}"),
    ("edit", "Fix the grammar in this email:\nHe go to work every days."),
    ("translate", "Translate into French: The shop opens at nine."),
    ("translate", "How would you translate this sentence to Japanese? I am late."),
    ("summarise", f"Summarize the following article in two sentences.\n\n{PASSAGE}"),
    ("summarise", f"{PASSAGE}\n\nTL;DR:"),
    ("summarise", "Give me a short summary of the meeting notes below.\n- budget agreed\n- launch moved"),
    ("extract", "Extract the name and the date from this note. Answer in JSON.\n\nMet Ana on 3 May."),
    ("extract", "Classify the following reviews as good or bad:\n1. Loved it.\n2. Awful."),
    ("rag", f"Context:\n{PASSAGE}\n\nQuestion: How many towns does the river pass?"),
    ("rag", f"{PASSAGE}\nWhere does the river rise?"),
    ("maths", "A box holds 12 eggs. How many eggs are in 7 boxes?"),
    ("maths", "Solve for x: 3x + 4 = 19"),
    ("creative", "Write a short story about a lighthouse keeper."),
    ("creative", "Compose a limerick on Mondays."),
    ("chat", "Who wrote the song of the summer?"),
    ("chat", "What is the capital of Peru?"),
    ("chat", "Thanks, that helps!"),
    ("chat", ""),
]


@pytest.mark.parametrize(("task", "text"), EXAMPLES)
def test_own_examples(task: str, text: str) -> None:
    """Each task is recognised in its plain form, and explicit commands win over what the text looks like."""
    assert classify(text) == task


def test_system_prompt_decides_only_without_other_evidence() -> None:
    """A system prompt of one purpose counts where the text shows none, and never against the text."""
    translator = "Translate everything the user says into German."
    assert classify("The shop opens at nine.", translator) == "translate"
    assert classify("Write a short story about a shop.", translator) == "creative"


def test_system_prompt_of_many_purposes_says_nothing() -> None:
    """An assistant that can do everything gives no hint of what is asked now."""
    assert classify("Hello!", "You can write code in Python, solve equations and write a poem.") == "chat"


@given(st.text(max_size=3000), st.text(max_size=500))
@settings(max_examples=100, deadline=None)
def test_any_text_gets_a_known_task(text: str, system: str) -> None:
    """No text makes it fail."""
    assert classify(text, system) in TASKS


def test_spec_bench_accuracy() -> None:
    """At least 95 % of first turns, 90 % of each category that is claimed, and 80 % of each of Spec-Bench's own, most
    of which are ten prompts; the rules were written with these prompts in view."""
    if not SPEC_BENCH:
        not_run("the classifier on Spec-Bench: $OUTRIDER_SPEC_BENCH names no file of its questions")
    hits: dict[str, list[bool]] = defaultdict(list)
    for line in Path(SPEC_BENCH).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        hits[row["category"]].append(classify(row["turns"][0]) in EXPECTED.get(row["category"], {"chat"}))
    assert set(hits) == set().union(*CLAIMED.values())
    own = {category: share_of([found]) for category, found in hits.items()}
    claimed = {claim: share_of([hits[one] for one in categories]) for claim, categories in CLAIMED.items()}
    assert share_of(hits.values()) >= 0.95, own
    assert min(claimed.values()) >= 0.9, claimed
    assert min(own.values()) >= 0.8, own


def share_of(hits: Iterable[list[bool]]) -> float:
    found = list(chain.from_iterable(hits))
    return sum(found) / len(found)


@pytest.mark.parametrize("text", ["word " * 200_000, "`" * 500_000, "\n" * 500_000, "how " * 100_000 + "1 2?"])
def test_long_texts_cost_no_more_than_short_ones(text: str) -> None:
    """A megabyte is not read whole: it would stall every other request of the gateway."""
    times = []
    for _ in range(3):
        started_s = time.process_time()
        classify(text)
        times.append(time.process_time() - started_s)
    assert min(times) < 0.1


def test_a_page_costs_microseconds() -> None:
    """The median over 4 KB of every example; 100 microseconds on a free core, asserted with a wide margin."""
    times = []
    for _, text in EXAMPLES:
        page = ((text or "x") * 400)[:4096]
        started_s = time.process_time()
        classify(page)
        times.append(time.process_time() - started_s)
    assert sorted(times)[len(times) // 2] < 0.001
