"""The body of a request and the hints of a call."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from outrider import Hints, Tool
from outrider.sdk.request import chat_ask, completions_ask, merged_hints, responses_ask


def body(messages: Any = "hi", *, is_stream: bool = False, **fields: Any) -> dict[str, Any]:
    return chat_ask(messages, fields, is_stream=is_stream).body


def test_text_is_one_user_message() -> None:
    """A string is the short form; a list goes as it is; nothing that was not said is sent."""
    assert body("hi") == {"messages": [{"role": "user", "content": "hi"}], "stream": False}
    messages = ({"role": "system", "content": "s", "x": 1}, {"role": "user", "content": "u"})
    assert body(messages)["messages"] == list(messages)


@pytest.mark.parametrize("messages", [{"role": "user"}, b"hi", None, 3])
def test_messages_of_a_wrong_kind_are_named(messages: Any) -> None:
    """A single message without its list, and anything else, is a TypeError."""
    with pytest.raises(TypeError, match="messages must be"):
        body(messages)


def test_fields_are_sent_when_given() -> None:
    """Zero is a value; hints travel in our object, without their defaults."""
    sent = body(temperature=0.0, max_tokens=5, hints=Hints(task="code", k=0), extra_body={"top_p": 0.5})
    assert (sent["temperature"], sent["max_tokens"], sent["top_p"]) == (0.0, 5, 0.5)
    assert sent["outrider"] == {"task": "code", "k": 0}
    assert "outrider" not in body(hints=Hints())


def test_a_stream_asks_for_usage() -> None:
    """The usage chunk is always wanted; other stream options are added to it."""
    assert body(is_stream=True)["stream_options"] == {"include_usage": True}
    more = {"stream_options": {"continuous_usage_stats": True}}
    assert body(is_stream=True, extra_body=more)["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": True,
    }


@pytest.mark.parametrize("key", ["messages", "stream", "model", "temperature", "outrider"])
def test_a_field_cannot_be_given_twice(key: str) -> None:
    """`extra_body` does not silently beat an argument."""
    with pytest.raises(ValueError, match=f"extra_body: '{key}' is set"):
        body(temperature=1.0, hints=Hints(k=2), extra_body={key: 1})


def test_several_choices_are_refused() -> None:
    """A result has room for one answer."""
    with pytest.raises(ValueError, match="n must be 1"):
        body(extra_body={"n": 2})
    assert body(extra_body={"n": 1})["n"] == 1


def test_hints_by_keyword_or_as_an_object() -> None:
    """Both ways give the same hints; none at all gives none."""
    assert merged_hints(None, {"task": "code", "k": 4}) == Hints(task="code", k=4)
    assert merged_hints(Hints(off=True), {}) == Hints(off=True)
    assert merged_hints(None, {}) is None
    assert merged_hints(None, {"task": None, "k": None}) == Hints()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"k": 99}, r"^k: .*16.*found 99"),
        ({"k": "4"}, "^k: "),
        ({"drafter": "eagle9"}, "^drafter: "),
        ({"task": "poetry"}, "^task: "),
        ({"off": True, "k": 3}, "^hints: .*contradict"),
    ],
)
def test_a_wrong_hint_is_named(fields: Any, message: str) -> None:
    """A value out of range or of the wrong type fails at the call, with the field's name."""
    with pytest.raises(ValueError, match=message):
        merged_hints(None, fields)


def test_a_wrong_keyword_is_named() -> None:
    """A misspelt argument is no hint; two sources of hints are one too many."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'temperture'"):
        body(temperture=1.0)
    with pytest.raises(TypeError, match="hints and 'k' were both given"):
        merged_hints(Hints(), {"k": 3})


def test_what_travels_in_headers() -> None:
    """Priority and deadline, and headers of the caller's, which win."""
    headers = chat_ask("hi", {"priority": "bulk", "deadline_s": 1.5}, is_stream=False).headers
    assert headers == {"x-outrider-priority": "bulk", "x-outrider-deadline-ms": "1500"}
    assert chat_ask("hi", {"deadline_s": 1e-9}, is_stream=False).headers == {"x-outrider-deadline-ms": "1"}
    own = {"priority": "bulk", "extra_headers": {"x-outrider-priority": "default"}}
    assert chat_ask("hi", own, is_stream=False).headers == {"x-outrider-priority": "default"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"priority": "urgent"}, "priority must be one of interactive, default, bulk"),
        ({"deadline_s": 0}, "deadline_s must be a positive"),
        ({"deadline_s": float("nan")}, "deadline_s must be a positive"),
    ],
)
def test_wrong_priorities_and_deadlines_are_named(fields: Any, message: str) -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match=message):
        body(**fields)


def test_a_prediction_and_exactness() -> None:
    """OpenAI's shape of the one, a hint of the other."""
    sent = body(prediction="old text", exact=True)
    assert sent["prediction"] == {"type": "content", "content": "old text"}
    assert sent["outrider"] == {"exact": True}


class Town(BaseModel):
    name: str


async def look(where: str) -> str:
    """Look."""
    return where


def test_tools_and_formats() -> None:
    """Tools and pydantic models are written out; OpenAI's own forms go as they are; a name chooses a tool."""
    sent = body(tools=[Tool(look), {"type": "x"}], tool_choice="look", response_format=Town)
    assert sent["tools"] == [Tool(look).to_wire(), {"type": "x"}]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    form = sent["response_format"]["json_schema"]
    assert (form["name"], form["schema"]["required"], form["strict"]) == ("Town", ["name"], True)
    plain = body(tool_choice="required", response_format={"type": "json_object"})
    assert (plain["tool_choice"], plain["response_format"]) == ("required", {"type": "json_object"})


def test_each_route_has_its_own_keywords() -> None:
    """Tools are of chats only; a misspelt keyword is no field of the protocol."""
    with pytest.raises(TypeError, match="'tools'"):
        completions_ask("hi", {"tools": []}, is_stream=False)  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="'tool_choice'"):
        responses_ask("hi", {"tool_choice": "auto"}, is_stream=False)  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="'background'"):
        body(background=True)
    with pytest.raises(TypeError, match="messages"):
        responses_ask(None, {}, is_stream=False)  # type: ignore[arg-type]
