"""From the body of `/v1/messages` to the body of a chat completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from outrider.gateway.translate.fields import check, joined_text, objects, refused, required

_SAME = frozenset({"model", "temperature", "top_p", "top_k"})
_READ = frozenset({
    "messages", "system", "max_tokens", "stop_sequences", "stream", "tools", "tool_choice", "metadata", "outrider",
})  # fmt: skip
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "thinking": ({"type": "disabled"},), "service_tier": ("auto", "standard_only"), "stream_options": ({},),
    "betas": ([],), "mcp_servers": ([],),
}  # fmt: skip
_ROLES = ("user", "assistant")
_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}
#: The cache of prefixes works without being told where to.
_MARK = "cache_control"


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """A chat body that asks for the same. InvalidRequest names a field that chat cannot carry."""
    check(body, _SAME | _READ, _NEUTRAL)
    messages = [] if body.get("system") is None else [_system(body["system"])]
    for where, message in objects(body["messages"], "messages"):
        messages += _messages(message, where)
    chat: dict[str, Any] = {name: body[name] for name in body if name in _SAME and body[name] is not None}
    chat |= {"messages": messages, "max_tokens": body["max_tokens"]}
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    chat |= _tools(body)
    if body.get("stream") is True:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _system(system: object) -> dict[str, Any]:
    return {"role": "system", "content": joined_text(system, "system", ("text",), (_MARK,))}


def _messages(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """One message of ours may be several of chat's: results of tools are messages of their own there."""
    role = required(message, "role", str, f"{where}.")
    if role not in _ROLES:
        raise refused(f"{where}.role", "expected user or assistant")
    check(message, {"role", "content"}, {}, f"{where}.")
    content = message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for place, block in objects(content, f"{where}.content"):
        kind = block.get("type")
        if kind == "text":
            texts.append(joined_text([block], place, ("text",), (_MARK, "citations")))
        elif kind == "tool_use" and role == "assistant":
            calls.append(_call(block, place))
        elif kind == "tool_result" and role == "user":
            results.append(_result(block, place))
        elif kind == "thinking" and role == "assistant":
            # Of our own answers only, which are not signed; it is not said to the model again.
            check(block, {"type", "thinking"}, {"signature": ("",)}, f"{place}.")
            required(block, "thinking", str, f"{place}.")
        else:
            raise refused(f"{place}.type")
    said: dict[str, Any] = {"role": role, "content": "".join(texts)} | ({"tool_calls": calls} if calls else {})
    return [*results, said] if texts or calls or not results else results


def _call(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    check(block, {"type", "id", "name", "input", "caller", _MARK}, {}, f"{place}.")
    arguments = orjson.dumps(required(block, "input", dict, f"{place}.")).decode()
    function = {"name": required(block, "name", str, f"{place}."), "arguments": arguments}
    return {"id": required(block, "id", str, f"{place}."), "type": "function", "function": function}


def _result(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Chat has no flag for a tool that failed: what it says is all that the model sees of it on any route."""
    check(block, {"type", "tool_use_id", "content", "is_error", _MARK}, {}, f"{place}.")
    content = joined_text(block.get("content") or "", f"{place}.content", ("text",), (_MARK,))
    if block.get("is_error") is True:
        content = f"Error: {content}"
    return {"role": "tool", "tool_call_id": required(block, "tool_use_id", str, f"{place}."), "content": content}


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    tools = []
    for where, tool in objects(body.get("tools") or [], "tools"):
        if tool.get("type", "custom") != "custom":
            raise refused(f"{where}.type")
        check(tool, {"type", "name", "description", "input_schema", "strict", _MARK}, {}, f"{where}.")
        names = {"name": "name", "description": "description", "input_schema": "parameters", "strict": "strict"}
        tools.append({"type": "function", "function": {names[k]: v for k, v in tool.items() if k in names}})
    choice = body.get("tool_choice") or {"type": "auto"}
    if not isinstance(choice, Mapping):
        raise refused("tool_choice", "expected an object")
    check(choice, {"type", "name", "disable_parallel_tool_use"}, {}, "tool_choice.")
    if not tools:
        if choice.get("type") in ("auto", "none"):
            return {}
        raise refused("tool_choice", "there are no tools")
    chat: dict[str, Any] = {"tools": tools, "tool_choice": _choice(choice)}
    if choice.get("disable_parallel_tool_use") is not None:
        chat["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    return chat


def _choice(choice: Mapping[str, Any]) -> object:
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": required(choice, "name", str, "tool_choice.")}}
    found = _CHOICES.get(str(choice.get("type")))
    if found is None:
        raise refused("tool_choice.type", "expected auto, any, tool or none")
    return found
