"""What a call asks for: the body and headers of a request, checked as far as they are ours to check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pydantic import BaseModel, ValidationError

from outrider.core import PRIORITIES, Drafter, Hints, Priority, Task
from outrider.sdk.transport import Ask, Query

if TYPE_CHECKING:
    from outrider.sdk.tool import Tool

Messages = str | Sequence[Mapping[str, Any]]

CHAT = "/chat/completions"
COMPLETIONS = "/completions"
RESPONSES = "/responses"


class HintFields(TypedDict, total=False):
    """The fields of `Hints` as keywords of a call.

    Example::

        result = await client.chat("Fix it: prnt(1)", task="edit", drafter="ngram", k=5)
    """

    task: Task | None
    """What the text is for; by default guessed."""
    drafter: Drafter | Literal["off"] | None
    """Fix the drafter, or `off`; by default the policy decides."""
    k: int | None
    """Fix the number of draft tokens per step, 0 to 16; 0 is no speculation."""
    off: bool
    """No speculation."""
    exact: bool
    """Refuse the request (InvalidRequest) when no lane honours all of its sampling exactly."""
    verbose: bool
    """Report the policy's inputs too."""


class CallFields(HintFields, total=False):
    """Keywords that all calls which generate share; those that are None are not sent.

    Example::

        common: CallFields = {"temperature": 0, "priority": "bulk", "deadline_s": 30}
        result = await client.chat("Hello", **common)
    """

    hints: Hints | None
    """Hints as an object, in place of the keywords."""
    model: str | None
    prediction: str | None
    """A text that the answer is expected to resemble, to draft from: a file before its edit, a page to quote."""
    priority: Priority | None
    """Among waiting requests."""
    deadline_s: float | None
    """Seconds after its arrival at which the request is of no use any more (DeadlineExceeded); in each attempt."""
    temperature: float | None
    max_tokens: int | None
    top_p: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    extra_body: Mapping[str, Any] | None
    """Any other field of the protocol."""
    extra_headers: Mapping[str, str] | None
    extra_query: Query | None
    """Parameters behind the address."""


class ChatFields(CallFields, total=False):
    """Keywords of `chat` and `chat_stream`.

    Example::

        fields: ChatFields = {"tools": [Tool(add)], "tool_choice": "required"}
        result = await client.chat("What is 17 + 4?", **fields)
    """

    tools: Sequence[Tool | Mapping[str, Any]] | None
    """What the model may call; its calls are in `ChatResult.tool_calls`, and an `Agent` answers them."""
    tool_choice: str | Mapping[str, Any] | None
    """`auto`, `none`, `required`, or the name of one tool."""
    response_format: type[BaseModel] | Mapping[str, Any] | None
    """The schema that the answer's text follows, as a pydantic model or in OpenAI's form."""


class ResponseFields(CallFields, total=False):
    """Keywords of `responses`, whole and streamed.

    Example::

        fields: ResponseFields = {"previous_response_id": "resp_1", "instructions": "Answer in French."}
        response = await client.responses("And why?", **fields)
    """

    instructions: str | None
    """What stands before the input."""
    previous_response_id: str | None
    """Of a stored response that this one goes on from."""
    store: bool | None
    """Keep the response, where the gateway has a store; by default it does."""
    background: bool | None
    """Work it out while nobody is connected; `responses.get` has it then."""


_HINTS = frozenset(HintFields.__annotations__)
_SENT = frozenset({"model", "temperature", "max_tokens", "top_p", "seed", "stop"})
_CHAT_SENT = frozenset({"tools", "tool_choice", "response_format"})
_OF_RESPONSES = frozenset({"instructions", "previous_response_id", "store", "background"})
_OURS = frozenset({"hints", "prediction", "priority", "deadline_s", "extra_body", "extra_headers", "extra_query"})
CHOICES = ("auto", "none", "required")


def chat_ask(messages: Messages, fields: ChatFields, *, is_stream: bool) -> Ask:
    """TypeError or ValueError for a wrong argument, which they name."""
    return _ask(CHAT, {"messages": said(messages), "stream": is_stream}, dict(fields), _CHAT_SENT)


def completions_ask(prompt: str | Sequence[int], fields: CallFields, *, is_stream: bool) -> Ask:
    """As `chat_ask`."""
    text = prompt if isinstance(prompt, str) else list(prompt)
    return _ask(COMPLETIONS, {"prompt": text, "stream": is_stream}, dict(fields))


def responses_ask(said_: Messages, fields: ResponseFields, *, is_stream: bool) -> Ask:
    """As `chat_ask`."""
    given = said_ if isinstance(said_, str) else said(said_)
    ask = _ask(RESPONSES, {"input": given, "stream": is_stream}, dict(fields), _OF_RESPONSES)
    ask.body.pop("stream_options", None)
    if "max_tokens" in ask.body:
        ask.body["max_output_tokens"] = ask.body.pop("max_tokens")
    return replace(ask, is_once=ask.body.get("background") is True)


def _ask(path: str, body: dict[str, Any], fields: dict[str, Any], more: frozenset[str] = frozenset()) -> Ask:
    if unknown := sorted(fields.keys() - _HINTS - _SENT - _OURS - more):
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
    given = {name: value for name, value in fields.items() if value is not None}
    hints = merged_hints(given.get("hints"), {name: given[name] for name in _HINTS & given.keys()})
    body |= {name: _plain(name, given[name]) for name in sorted((_SENT | more) & given.keys())}
    if "prediction" in given:
        body["prediction"] = {"type": "content", "content": given["prediction"]}
    if hints is not None and (wire := hints.model_dump(exclude_defaults=True)):
        body["outrider"] = wire
    headers = _headers(given.get("priority"), given.get("deadline_s"))
    body |= _extra(body, given.get("extra_body") or {})
    headers |= given.get("extra_headers") or {}
    return Ask("POST", path, body, headers, given.get("extra_query") or {}, needs_model=True)


def _plain(name: str, value: Any) -> Any:
    """As it is written on the wire."""
    if name == "tools":
        return [tool if isinstance(tool, Mapping) else tool.to_wire() for tool in value]
    if name == "tool_choice" and isinstance(value, str) and value not in CHOICES:
        return {"type": "function", "function": {"name": value}}
    if name == "response_format" and isinstance(value, type) and issubclass(value, BaseModel):
        schema = {"name": value.__name__, "schema": value.model_json_schema(), "strict": True}
        return {"type": "json_schema", "json_schema": schema}
    return value


def _headers(priority: str | None, deadline_s: float | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    if priority is not None:
        if priority not in PRIORITIES:
            raise ValueError(f"priority must be one of {', '.join(PRIORITIES)}, not {priority!r}")
        headers["x-outrider-priority"] = priority
    if deadline_s is not None:
        if not deadline_s > 0:
            raise ValueError(f"deadline_s must be a positive number of seconds, not {deadline_s!r}")
        headers["x-outrider-deadline-ms"] = str(max(round(deadline_s * 1000), 1))
    return headers


def _extra(body: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    extra = dict(given)
    if clashes := sorted((body.keys() | {"model"}) & extra.keys()):
        raise ValueError(f"extra_body: {clashes[0]!r} is set by an argument of the call")
    if extra.get("n", 1) != 1:
        raise ValueError("extra_body: n must be 1: a result holds one answer; send several requests instead")
    if body["stream"]:
        extra["stream_options"] = {"include_usage": True} | dict(extra.get("stream_options") or {})
    return extra


def said(messages: object) -> list[Any]:
    """Text as one user message; a list as it is. TypeError for anything else."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if isinstance(messages, list | tuple):
        return list(messages)
    raise TypeError(f"messages must be text or a list of messages, not {type(messages).__name__}")


def merged_hints(hints: Hints | None, fields: Mapping[str, Any]) -> Hints | None:
    """Hints given as an object or as keywords.

    TypeError for both ways at once, ValueError (naming the field) for a wrong value.
    """
    if not fields:
        return hints
    if hints is not None:
        raise TypeError(f"hints and {min(fields)!r} were both given")
    try:
        return Hints(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "hints"
        raise ValueError(f"{where}: {first['msg']} (found {first['input']!r})") from error
