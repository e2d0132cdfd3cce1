"""From the body of `/v1/responses` to the body of a chat completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.gateway.translate.fields import check, joined_text, objects, refused, required

#: Of the same name and meaning in chat.
_SAME = frozenset({
    "model", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "logit_bias", "prediction", "cache_salt", "extra_key",
})  # fmt: skip
#: Read here or by the gateway, or labels that come back in the answer.
_READ = frozenset({
    "input", "instructions", "max_output_tokens", "stream", "store", "background", "previous_response_id", "tools",
    "tool_choice", "parallel_tool_calls", "text", "outrider", "metadata", "user", "safety_identifier",
    "prompt_cache_key",
})  # fmt: skip
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "include": ([],), "reasoning": ({},), "service_tier": ("auto", "default"), "truncation": ("disabled",),
    "top_logprobs": (0,), "stream_options": ({}, {"include_obfuscation": False}),
}  # fmt: skip
#: The law where the request is silent, by OpenAI's API. It is sent, since lanes may have defaults of the model's
#: own, so that what the answer says of it is true.
DEFAULTS: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0}
#: Of an answer that comes back as history. No template of chat knows phases: like ids and status they are labels.
_PHASES = ("commentary", "final_answer")
_TEXTS = ("input_text", "output_text", "text")
#: What templates of chat know.
_ROLES: Mapping[str, str] = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}


def to_chat(body: Mapping[str, Any], history: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """A chat body that asks for the same, after the messages of an earlier conversation.

    InvalidRequest names a field that chat cannot carry.
    """
    check(body, _SAME | _READ, _NEUTRAL)
    said = [*history, *messages_of(input_items(body))]
    if body.get("instructions") is not None:
        said = [{"role": "system", "content": body["instructions"]}, *said]
    same = {name: body[name] for name in body if name in _SAME and body[name] is not None}
    chat: dict[str, Any] = {**DEFAULTS, **same, "messages": said}
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    if (form := _format(body.get("text"))) is not None:
        chat["response_format"] = form
    chat |= _tools(body)
    if body.get("stream") is True:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def input_items(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The input as items."""
    said = body["input"]
    return [{"type": "message", "role": "user", "content": said}] if isinstance(said, str) else list(said)


def messages_of(items: Sequence[object], name: str = "input") -> list[dict[str, Any]]:
    """Chat messages of items of input or output; calls that follow each other are those of one message."""
    messages: list[dict[str, Any]] = []
    for where, item in objects(list(items), name):
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(_message(item, where))
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(_call(item, where))
        elif kind == "function_call_output":
            messages.append(_call_output(item, where))
        elif kind == "reasoning":
            _check_reasoning(item, where)
        else:
            raise refused(f"{where}.type")
    return messages


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = _ROLES.get(required(item, "role", str, f"{where}."))
    if role is None:
        raise refused(f"{where}.role", f"expected one of {', '.join(_ROLES)}")
    neutral = {"phase": _PHASES if role == "assistant" else ()}
    check(item, {"type", "role", "content", "id", "status"}, neutral, f"{where}.")
    return {"role": role, "content": joined_text(item.get("content"), f"{where}.content", _TEXTS)}


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    check(item, {"type", "call_id", "name", "arguments", "id", "status"}, {}, f"{where}.")
    function = {name: required(item, name, str, f"{where}.") for name in ("name", "arguments")}
    return {"id": required(item, "call_id", str, f"{where}."), "type": "function", "function": function}


def _check_reasoning(item: Mapping[str, Any], where: str) -> None:
    """Of our own answers only. What was thought is not said to the model again, whoever keeps the conversation."""
    check(item, {"type", "id", "status", "content"}, {"summary": ([],)}, f"{where}.")
    joined_text(item.get("content") or [], f"{where}.content", ("reasoning_text",))


def _call_output(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    check(item, {"type", "call_id", "output", "id", "status"}, {}, f"{where}.")
    output = joined_text(item.get("output"), f"{where}.output", _TEXTS)
    return {"role": "tool", "tool_call_id": required(item, "call_id", str, f"{where}."), "content": output}


def _format(text: object) -> dict[str, Any] | None:
    """`response_format` of chat."""
    if text is None:
        return None
    if not isinstance(text, Mapping):
        raise refused("text", "expected an object")
    check(text, {"format"}, {"verbosity": ("medium",)}, "text.")
    form = text.get("format")
    if form is None or form == {"type": "text"}:
        return None
    if not isinstance(form, Mapping):
        raise refused("text.format", "expected an object")
    if form.get("type") == "json_object":
        check(form, {"type"}, {}, "text.format.")
        return {"type": "json_object"}
    if form.get("type") != "json_schema":
        raise refused("text.format.type", "expected text, json_object or json_schema")
    check(form, {"type", "name", "schema", "strict", "description"}, {}, "text.format.")
    fields = {name: value for name, value in form.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": fields}


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    """`tools`, `tool_choice` and `parallel_tool_calls` of chat; nothing where there are no tools to be used."""
    tools = []
    for where, tool in objects(body.get("tools") or [], "tools"):
        if tool.get("type") != "function":
            raise refused(f"{where}.type")
        check(tool, {"type", "name", "description", "parameters", "strict"}, {}, f"{where}.")
        function = {name: value for name, value in tool.items() if name != "type" and value is not None}
        tools.append({"type": "function", "function": function})
    choice = _choice(body.get("tool_choice"))
    if not tools:
        if choice in (None, "auto", "none"):
            return {}
        raise refused("tool_choice", "there are no tools")
    chat: dict[str, Any] = {"tools": tools} | ({} if choice is None else {"tool_choice": choice})
    if body.get("parallel_tool_calls") is not None:
        chat["parallel_tool_calls"] = body["parallel_tool_calls"]
    return chat


def _choice(choice: object) -> object:
    if choice is None or choice in ("none", "auto", "required"):
        return choice
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        check(choice, {"type", "name"}, {}, "tool_choice.")
        return {"type": "function", "function": {"name": required(choice, "name", str, "tool_choice.")}}
    raise refused("tool_choice")
