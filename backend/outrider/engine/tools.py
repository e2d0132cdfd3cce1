"""Tools of a chat: how the model is told of them, how a call can be forced, and how calls are read from its text.

One format is known, in which Hermes, Qwen and others were trained: `<tool_call>{"name": ..., "arguments": {...}}
</tool_call>`. Models whose chat template does not know it are told of tools in the system message, in the words of
Qwen's template.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import orjson

from outrider.engine.bodies import joined
from outrider.engine.chat_body import ChatBody, Message, NamedChoice
from outrider.errors import InvalidRequest

BEGIN, END = "<tool_call>", "</tool_call>"

_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>"
)
_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)

#: JSON as the examples have it; free spacing would be spent on indentation.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def for_template(body: ChatBody, *, knows_tools: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools as the model's chat template takes them; for one that knows no tools all is in messages."""
    tools = [tool.to_template() for tool in body.tools]
    if knows_tools:
        return [_with_calls(message) for message in body.messages], tools
    messages = [_in_words(message) for message in body.messages]
    if tools:
        lines = "".join("\n" + orjson.dumps(tool).decode() for tool in tools)
        has_system = messages[0]["role"] == "system"
        before = f"{messages[0]['content']}\n\n" if has_system else ""
        system = {"role": "system", "content": before + _BEFORE + lines + _AFTER}
        messages = [system, *(messages[1:] if has_system else messages)]
    return messages, []


def _with_calls(message: Message) -> dict[str, Any]:
    calls = [{"type": "function", "function": call.function.to_template()} for call in message.tool_calls]
    return {"role": message.role, "content": joined(message.content)} | ({"tool_calls": calls} if calls else {})


def _in_words(message: Message) -> dict[str, Any]:
    """Calls and answers of tools as the text that they were, or would have been."""
    text = joined(message.content)
    if message.role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
    calls = [orjson.dumps(call.function.to_template()).decode() for call in message.tool_calls]
    parts = ([text] if text or not calls else []) + [f"{BEGIN}\n{call}\n{END}" for call in calls]
    return {"role": message.role, "content": "\n".join(parts)}


def forced_grammar(body: ChatBody) -> str | None:
    """A Lark grammar of the calls that `tool_choice` asks for; None when it leaves the model the choice.

    InvalidRequest when it asks for a tool that is not there.
    """
    choice = body.tool_choice
    if choice in ("auto", "none"):
        return None
    name = choice.function.name if isinstance(choice, NamedChoice) else None
    tools = [tool for tool in body.tools if name in (None, tool.function.name)]
    if not tools:
        raise InvalidRequest("there is no such tool" if name else "there are no tools", param="tool_choice")
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.function.name}, "arguments": tool.function.schema_},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    rest = "" if name or not body.parallel_tool_calls else ' ("\\n" call)*'
    schema = orjson.dumps({"anyOf": calls, "x-guidance": _SPACING}).decode()
    return f'start: call{rest}\ncall: "{BEGIN}\\n" object "\\n{END}"\nobject: %json {schema}\n'


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool by the model."""

    name: str
    arguments: str
    """A JSON object."""
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def to_wire(self, index: int | None = None) -> dict[str, Any]:
        """`index` is its place among the answer's calls, which streams tell."""
        place = {} if index is None else {"index": index}
        return {
            **place,
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


class CallReader:
    """Takes an answer's text piece by piece, and tells calls from what is to be shown.

    What stands between the marks and is no call is text like any other.
    """

    def __init__(self) -> None:
        self._held = ""
        self._has_calls = False

    def append(self, text: str, *, is_last: bool = False) -> tuple[str, list[Call]]:
        """Text that may be shown now, and calls that are complete now; with the last piece nothing is held back."""
        self._held += text
        shown, calls = "", list[Call]()
        while (at := self._held.find(BEGIN)) >= 0:
            end = self._held.find(END, at)
            if end < 0 and not is_last:
                break
            stop = end if end >= 0 else len(self._held)
            call = _read_call(self._held[at + len(BEGIN) : stop])
            before, whole = self._held[:at], self._held[at : stop + len(END)]
            self._held = self._held[stop + len(END) :]
            shown += self._shown(before) if call else before + whole
            self._has_calls = self._has_calls or call is not None
            calls += [call] if call else []
        keep = 0 if is_last else len(self._held) - at if at >= 0 else self._overlap()
        cut = len(self._held) - keep
        shown, self._held = shown + self._shown(self._held[:cut]), self._held[cut:]
        return shown, calls

    def _shown(self, text: str) -> str:
        """Blank text around calls separates them and is not shown."""
        return "" if self._has_calls and not text.strip() else text

    def _overlap(self) -> int:
        """Length of the longest end of the held text that may become the mark; blanks before it wait with it."""
        blank = len(self._held) - len(self._held.rstrip())
        for size in range(min(len(BEGIN) - 1, len(self._held)), 0, -1):
            if BEGIN.startswith(self._held[-size:]):
                return size
        return blank if self._has_calls else 0


def _read_call(text: str) -> Call | None:
    try:
        call = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not (isinstance(call, dict) and isinstance(call.get("name"), str)):
        return None
    arguments = call.get("arguments", {})
    return Call(call["name"], orjson.dumps(arguments).decode()) if isinstance(arguments, dict) else None
