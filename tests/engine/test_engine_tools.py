"""Tools: what the model is told of them, what a forced call may be, and how calls are read from its text."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.bodies import validated
from outrider.engine.chat_body import ChatBody
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.grammar import GrammarCompiler
from outrider.engine.protocol import parse_chat
from outrider.engine.tokenizer import Tokenizer
from outrider.engine.tools import BEGIN, END, CallReader, for_template, forced_grammar
from outrider.errors import InvalidRequest

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
USER = {"role": "user", "content": "go"}


def chat(*messages: dict[str, Any], **fields: Any) -> ChatBody:
    return validated(ChatBody, {"messages": list(messages) or [USER], "tools": [ADD, NOW], **fields})


def call(name: str = "add", **arguments: Any) -> str:
    return f'{BEGIN}\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n{END}'


def read(text: str, cuts: list[int]) -> tuple[str, list[tuple[str, Any]]]:
    """What is shown of a text that arrives in pieces, and its calls."""
    edges = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    reader, shown, calls = CallReader(), "", []
    for a, b in itertools.pairwise(edges):
        piece, found = reader.append(text[a:b])
        shown, calls = shown + piece, calls + found
    piece, found = reader.append("", is_last=True)
    return shown + piece, [(one.name, json.loads(one.arguments)) for one in calls + found]


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("Hello.", "Hello.", []),
        (call(a=1), "", [("add", {"a": 1})]),
        (f"First:\n{call(a=1)}\n{call('now')}\n", "First:\n", [("add", {"a": 1}), ("now", {})]),
        (f"{call(a=1)}\nDone.", "\nDone.", [("add", {"a": 1})]),
        (f'{BEGIN}{{"name": "now"}}{END}', "", [("now", {})]),
        (f'{BEGIN}{{"name": "now"}}', "", [("now", {})]),
        (f"{BEGIN}{{bad}}{END} and on", f"{BEGIN}{{bad}}{END} and on", []),
        (f'{BEGIN}{{"name": "add", "argum', f'{BEGIN}{{"name": "add", "argum', []),
        (f'{BEGIN}{{"name": "add", "arguments": [1]}}{END}', f'{BEGIN}{{"name": "add", "arguments": [1]}}{END}', []),
        (f"{BEGIN}3{END}", f"{BEGIN}3{END}", []),
        ("a <b> <tool_cal", "a <b> <tool_cal", []),
        ("", "", []),
    ],
)
@given(cuts=st.lists(st.integers(0, 120), max_size=8))
def test_calls_are_told_from_text(text: str, shown: str, calls: list[Any], cuts: list[int]) -> None:
    """However the text arrives; what is no call is shown as it is, and nothing is shown of what becomes one."""
    assert read(text, cuts) == (shown, calls)


@given(
    parts=st.lists(
        st.sampled_from([call(a=1), BEGIN, END, "<tool", " ", "\n", "x", "{", '{"name": "now"}']), max_size=8
    ),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_reading_does_not_depend_on_the_cuts(parts: list[str], cuts: list[int]) -> None:
    """Any mixture of marks, halves of marks and text reads in pieces as it reads whole."""
    text = "".join(parts)
    assert read(text, cuts) == read(text, [])


def test_a_model_whose_template_knows_no_tools_is_told_in_words() -> None:
    """In the system message, beside the caller's; calls and answers become the text that they were."""
    body = chat(
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1}'}, "id": "c"}]},
        {"role": "tool", "content": "2", "tool_call_id": "c"},
        {"role": "assistant", "content": "It is 2."},
    )
    messages, tools = for_template(body, knows_tools=False)
    assert tools == [] and [message["role"] for message in messages] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    system = messages[0]["content"]
    assert system.startswith("Be brief.\n\n# Tools\n") and '"name":"add"' in system and '"name":"now"' in system
    assert messages[2]["content"] == f'{BEGIN}\n{{"name":"add","arguments":{{"a":1}}}}\n{END}'
    assert messages[3]["content"] == "<tool_response>\n2\n</tool_response>"
    without, _ = for_template(validated(ChatBody, {"messages": [USER]}), knows_tools=False)
    assert without == [USER]


def test_a_template_that_knows_tools_gets_them() -> None:
    """With arguments as objects, which templates write out themselves."""
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1}'}}],
    }
    messages, tools = for_template(chat(USER, called), knows_tools=True)
    assert messages[1]["tool_calls"] == [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    empty = {"type": "object", "properties": {}}
    assert tools == [ADD, {"type": "function", "function": {"name": "now", "description": "", "parameters": empty}}]


def test_tools_reach_the_template(tmp_path: Path, toy_folder: Path) -> None:
    """Of a model whose template writes them in the format that is read."""
    (tmp_path / "tokenizer.json").write_bytes((toy_folder / "tokenizer.json").read_bytes())
    template = "{% for tool in tools or [] %}{{ 'AB' }}{% endfor %}{% if not tools %}{{ 'C' }}{% endif %}"
    (tmp_path / "chat_template.jinja").write_text(template + "{# <tool_call> #}")
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.knows_tools and not Tokenizer(toy_folder).knows_tools
    assert tokenizer.encode_chat([USER], [ADD, NOW]) == tokenizer.encode("ABAB", add_special_tokens=False)
    assert tokenizer.encode_chat([USER]) == tokenizer.encode("C", add_special_tokens=False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
         "messages.0.tool_calls.0.function.arguments"),
    ],
)  # fmt: skip
def test_wrong_tools_are_named(fields: Any, param: str) -> None:
    """By the field where the mistake is."""
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_a_choice_needs_its_tool() -> None:
    """A name that is not there, and a call of one of no tools; the free choices force nothing."""
    with pytest.raises(InvalidRequest, match="no such tool"):
        forced_grammar(chat(tool_choice={"type": "function", "function": {"name": "minus"}}))
    with pytest.raises(InvalidRequest, match="no tools"):
        forced_grammar(chat(tools=[], tool_choice="required"))
    assert forced_grammar(chat()) is None and forced_grammar(chat(tool_choice="none")) is None


def fits(compiler: GrammarCompiler, tokenizer: Tokenizer, body: ChatBody, text: str) -> bool:
    """Whether the whole text is an answer that the choice of the body allows."""
    grammar = forced_grammar(body)
    assert grammar is not None
    state = compiler.compile("ebnf", grammar).start()
    eos = tokenizer.vocabulary["<|im_end|>"]
    ids = tokenizer.encode(text, add_special_tokens=False)
    return all(state.accept(token) for token in ids) and (state.is_complete or state.accept(eos))


@pytest.mark.model
def test_forced_calls_follow_their_schemas(model_folder: Path) -> None:
    """Name and arguments of one tool; several calls where they are allowed; nothing else."""
    tokenizer = Tokenizer(model_folder)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, (tokenizer.vocabulary["<|im_end|>"],))
    one, two = call(a=1), f"{call(a=1)}\n{call('now')}"
    any_, single = chat(tool_choice="required"), chat(tool_choice="required", parallel_tool_calls=False)
    named = chat(tool_choice={"type": "function", "function": {"name": "add"}})
    expected = {one: (1, 1, 1), two: (1, 0, 0), call("now"): (1, 1, 0), "Hello.": (0, 0, 0), call(a="x"): (0, 0, 0)}
    for text, allowed in expected.items():
        found = tuple(fits(compiler, tokenizer, body, text) for body in (any_, single, named))
        assert found == tuple(map(bool, allowed)), text


@pytest.mark.model
def test_how_a_choice_bounds_the_request(model_folder: Path) -> None:
    """A forced call has a grammar, a single free one ends with its mark, none is not read; two grammars clash."""
    engine = Engine(model_folder, EngineLimits(max_running=1))

    def parsed(**fields: Any) -> Any:
        return parse_chat({"messages": [USER], "tools": [ADD], **fields}, engine)

    forced, single, free, none = (
        parsed(tool_choice="required"), parsed(parallel_tool_calls=False), parsed(), parsed(tool_choice="none"),
    )  # fmt: skip
    assert [one.request.grammar is not None for one in (forced, single, free, none)] == [True, False, False, False]
    assert [one.request.stop for one in (forced, single, free, none)] == [(), (END,), (), ()]
    assert [one.has_tools for one in (forced, single, free, none)] == [True, True, True, False]
    assert none.request.prompt_ids == free.request.prompt_ids
    with pytest.raises(InvalidRequest) as caught:
        parsed(tool_choice="required", response_format={"type": "json_object"})
    assert caught.value.param == "tool_choice"
