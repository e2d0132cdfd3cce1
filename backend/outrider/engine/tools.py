"""Tools of a chat: how the model is told of them, and how a call can be forced.

Models whose chat template does not know the format of `calls` are told of tools in the system message, in the words
of Qwen's template.
"""

from __future__ import annotations

from typing import Any

import orjson

from outrider.engine.bodies import joined
from outrider.engine.calls import BEGIN, END
from outrider.engine.chat_body import ChatBody, Message, NamedChoice, ToolSpec
from outrider.errors import InvalidRequest

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
    names = [f"tool_{i}" for i in range(len(tools))]
    rest = "" if name or not body.parallel_tool_calls else ' ("\\n" call)*'
    head = f'start: call{rest}\ncall: "{BEGIN}\\n" ({" | ".join(names)}) "\\n{END}"\n'
    return head + "".join(map(_rules, names, tools))


def _rules(rule: str, tool: ToolSpec) -> str:
    """A call of one tool. Its schema is a document of its own, so that references inside it find their aims."""
    before = orjson.dumps(f'{{"name": "{tool.function.name}", "arguments": ').decode()
    schema = orjson.dumps({"type": "object"} | tool.function.schema_ | {"x-guidance": _SPACING}).decode()
    return f'{rule}: {before} {rule}_arguments "}}"\n{rule}_arguments: %json {schema}\n'
