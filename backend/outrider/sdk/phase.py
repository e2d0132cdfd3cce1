"""What an agent's next answer will be like, which decides how it is drafted; a wrong guess costs speed only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from outrider.core import Task

if TYPE_CHECKING:
    from outrider.sdk.tool import ToolAnswer

#: `json` is a tool call or a structured answer.
Phase = Literal["json", "edit", "quote", "prose"]

TASK_OF: Mapping[Phase, Task] = {"json": "extract", "edit": "edit", "quote": "quote", "prose": "chat"}


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known before an agent's next answer.

    Example::

        def phase_of(situation: Situation) -> Phase:
            return "edit" if situation.answers and situation.earlier else guess_phase(situation)
    """

    messages: Sequence[Mapping[str, Any]]
    """The conversation so far."""
    answers: Sequence[ToolAnswer]
    """What tools gave since the last answer; empty after a word of the user."""
    has_tools: bool
    """Whether the model may call one now."""
    is_structured: bool
    """Whether the answer has to follow a schema."""
    earlier: Sequence[ToolAnswer] = ()
    """What tools gave before in the session to be edited or quoted: the last of each kind."""


def guess_phase(situation: Situation) -> Phase:
    """What tools say of what they lead to; JSON where a tool is likely to be called; prose otherwise. Raises nothing.

    Example::

        agent = Agent(client, [read_file], phase_of=guess_phase)
    """
    if situation.is_structured:
        return "json"
    for answer in reversed(situation.answers):
        if answer.leads_to is not None and answer.error is None:
            return answer.leads_to
    return "json" if situation.has_tools and not situation.answers else "prose"


def prediction_for(phase: Phase, situation: Situation) -> str | None:
    """The text that an edit or a quotation will mostly repeat: what the last tool with this aim gave, now or before.

    Inside a tool's arguments it stands escaped, so that where tools may be called both spellings are offered.
    """
    for answer in reversed([*situation.earlier, *situation.answers]):
        if answer.leads_to == phase and answer.error is None and answer.content:
            escaped = json.dumps(answer.content, ensure_ascii=False)[1:-1]
            has_both = situation.has_tools and escaped != answer.content
            return f"{answer.content}\n{escaped}" if has_both else answer.content
    return None
