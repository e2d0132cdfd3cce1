"""Phases of an agent: what decides them, and what is offered as a prediction."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import Situation, ToolAnswer, ToolCall, guess_phase
from outrider.core import TASKS
from outrider.sdk.phase import TASK_OF, prediction_for

FILE = 'def f():\n    return "a"\n'


def answer(leads_to: Any = None, content: str = FILE, error: Exception | None = None) -> ToolAnswer:
    return ToolAnswer(ToolCall(), content, error, 0.0, leads_to)


def situation(*answers: ToolAnswer, has_tools: bool = True, is_structured: bool = False) -> Situation:
    return Situation([], answers, has_tools, is_structured)


@pytest.mark.parametrize(
    ("found", "phase"),
    [
        (situation(), "json"),
        (situation(has_tools=False), "prose"),
        (situation(has_tools=False, is_structured=True), "json"),
        (situation(answer()), "prose"),
        (situation(answer("edit")), "edit"),
        (situation(answer("edit"), answer("quote")), "quote"),
        (situation(answer("edit"), answer()), "edit"),
        (situation(answer("edit", error=OSError())), "prose"),
    ],
)
def test_the_phase_is_guessed(found: Situation, phase: Any) -> None:
    """From what the last tools say of what they lead to; a failed one leads nowhere."""
    assert guess_phase(found) == phase
    assert TASK_OF[phase] in TASKS


def test_what_a_tool_gave_is_the_prediction() -> None:
    """Of an edit the file; where it may be written into a tool's arguments, also as it stands there."""
    only_text = prediction_for("edit", situation(answer("edit"), has_tools=False))
    assert only_text == FILE
    both = prediction_for("edit", situation(answer("edit")))
    assert both == FILE + "\n" + 'def f():\\n    return \\"a\\"\\n'
    assert prediction_for("edit", situation(answer("edit", "plain"))) == "plain"


@pytest.mark.parametrize(
    "found", [situation(), situation(answer()), situation(answer("quote")), situation(answer("edit", ""))]
)
def test_without_such_a_tool_nothing_is_predicted(found: Situation) -> None:
    """No text is offered that the answer is not expected to repeat."""
    assert prediction_for("edit", found) is None


def test_what_was_given_before_is_offered_where_nothing_newer_is() -> None:
    """Of the same kind only."""
    earlier = (answer("edit", "old"), answer("quote", "page"))
    assert prediction_for("edit", Situation([], (), False, False, earlier)) == "old"
    assert prediction_for("edit", Situation([], (answer("edit", "new"),), False, False, earlier)) == "new"
    assert prediction_for("json", Situation([], (answer("edit", "new"),), True, False, earlier)) is None
