"""Tools: what the model is told of them, what a forced call may be, and how calls are read from its text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.bodies import validated
from outrider.engine.calls import BEGIN, END
from outrider.engine.chat_body import ChatBody
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.grammar import GrammarCompiler
from outrider.engine.protocol import parse_chat
from outrider.engine.replies import CHAT, answers_of, whole_body
from outrider.engine.tokenizer import Tokenizer
from outrider.engine.tools import for_template, forced_grammar
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
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
         "tools[0].function.parameters"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
         "messages[0].tool_calls[0].function.arguments"),
    ],
)  # fmt: skip
def test_wrong_tools_are_named(fields: Any, param: str) -> None:
    """By the field where the mistake is."""
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert "Value error" not in caught.value.message  # the checker's words, not ours


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


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
REFERRING = [
    {"type": "object", "properties": {"at": {"$ref": "#/$defs/P"}}, "required": ["at"], "$defs": {"P": POINT}},
    {"$ref": "#/$defs/L", "$defs": {
        "L": {"type": "object", "properties": {"at": {"$ref": "#/$defs/P"}}, "required": ["at"]}, "P": POINT}},
    {"type": "object", "properties": {"at": {"$ref": "#/definitions/P"}}, "required": ["at"],
     "definitions": {"P": POINT}},
]  # fmt: skip


@pytest.mark.model
@pytest.mark.parametrize("schema", REFERRING, ids=["a part", "the whole", "older word"])
def test_schemas_may_refer_to_themselves(model_folder: Path, schema: dict[str, Any]) -> None:
    """Every tool's references lead into its own schema, also beside other tools with other definitions."""
    tokenizer = Tokenizer(model_folder)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, (tokenizer.vocabulary["<|im_end|>"],))
    other = {"type": "object", "properties": {"x": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"type": "string"}}}
    tools = [
        {"type": "function", "function": {"name": n, "parameters": s}} for n, s in (("go", schema), ("o", other))
    ]
    body = chat(tools=tools, tool_choice="required")
    for text, allowed in {call("go", at={"x": 1}): True, call("go", at={"x": "a"}): False,
                          call("o", x="a"): True, call("o", x=1): False}.items():  # fmt: skip
        assert fits(compiler, tokenizer, body, text) is allowed, text


@pytest.mark.model
def test_how_a_choice_bounds_the_request(model_folder: Path) -> None:
    """A forced call has a grammar, a single free one ends the answer, none is not read; two grammars clash."""
    engine = Engine(model_folder, EngineLimits(max_running=1))

    def parsed(**fields: Any) -> Any:
        return parse_chat({"messages": [USER], "tools": [ADD], **fields}, engine)

    forced, single, free, none = (
        parsed(tool_choice="required"), parsed(parallel_tool_calls=False), parsed(), parsed(tool_choice="none"),
    )  # fmt: skip
    assert [one.request.grammar is not None for one in (forced, single, free, none)] == [True, False, False, False]
    assert [one.request.ends_with_call for one in (forced, single, free, none)] == [False, True, False, False]
    assert {one.request.stop for one in (forced, single, free, none)} == {()}
    assert [one.has_tools for one in (forced, single, free, none)] == [True, True, True, False]
    assert none.request.prompt_ids == free.request.prompt_ids
    with pytest.raises(InvalidRequest) as caught:
        parsed(tool_choice="required", response_format={"type": "json_object"})
    assert caught.value.param == "tool_choice"


@pytest.mark.model
@pytest.mark.parametrize("plan", [{"drafter": "off", "k": 0}, {"drafter": "ngram", "k": 4}], ids=["off", "on"])
def test_the_one_allowed_call_ends_the_answer(model_folder: Path, plan: dict[str, Any]) -> None:
    """There and nowhere else: an end mark in the text before it or inside its arguments cuts nothing."""
    engine = Engine(model_folder, EngineLimits(max_running=1))
    text = f"Use {END} so: {call('add', a=END)}"
    parsed = parse_chat(
        {"messages": [USER], "tools": [ADD], "parallel_tool_calls": False, "max_tokens": 120,
         "custom_params": {"outrider": plan},
         "regex": re.escape(f"{text}\n{call('now')} and so on")}, engine,
    )  # fmt: skip
    (answer,) = answers_of(parsed, "m")
    engine.add(parsed.request)
    while engine.has_work:
        for output in engine.step():
            answer.add(output)
    (choice,) = whole_body([answer], CHAT)["choices"]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("tool_calls", None)
    assert choice["message"]["content"] == f"Use {END} so: "
    assert [one["function"]["arguments"] for one in choice["message"]["tool_calls"]] == [f'{{"a":"{END}"}}']
    assert engine.tokenizer.decode(answer.token_ids).startswith(text)
    assert len(answer.token_ids) <= len(engine.tokenizer.encode(text, add_special_tokens=False)) + 1
