"""Sampling fields of request bodies: what becomes of penalties, biases and grammars, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from markov import EOS, write_ending_checkpoint
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.protocol import parse_chat, parse_completion, parse_generate
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.errors import InvalidRequest
from outrider.speculation.target import SamplingLaw

INTEGER = {"type": "integer", "minimum": 10, "maximum": 99}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, chain: np.ndarray) -> Engine:
    folder = tmp_path_factory.mktemp("bodies") / "toy"
    write_ending_checkpoint(folder, chain)
    return Engine(folder, EngineLimits(context_length=512))


def chat(engine: Engine, **fields: Any) -> GenerateRequest:
    return parse_chat({"messages": [{"role": "user", "content": "AB"}], **fields}, engine).request


def completion(engine: Engine, **fields: Any) -> GenerateRequest:
    return parse_completion({"prompt": "AB", **fields}, engine).request


def generate(engine: Engine, **fields: Any) -> GenerateRequest:
    return parse_generate({"text": "AB", "sampling_params": fields}, engine).request


def text_of(engine: Engine, request: GenerateRequest) -> tuple[str, Finish | None]:
    engine.add(request)
    text, finish = "", None
    while engine.has_work:
        for output in engine.step():
            text, finish = text + output.text, output.finish
    return text, finish


@pytest.mark.parametrize("route", [chat, completion, generate])
def test_penalties_and_biases_reach_the_law(engine: Engine, route: Any) -> None:
    """All routes take them; biases come sorted by token, whatever their order in the body."""
    fields = {"frequency_penalty": 0.5, "presence_penalty": -1, "repetition_penalty": 1.2, "top_k": 5}
    law = route(engine, **fields, logit_bias={"12": -100, "3": 1.5}).law
    assert law == SamplingLaw(
        top_k=5, frequency_penalty=0.5, presence_penalty=-1, repetition_penalty=1.2, logit_bias=((3, 1.5), (12, -100))
    )
    assert route(engine).law == SamplingLaw()


GRAMMARS = [
    (chat, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": INTEGER}}}, r"[1-9]\d"),
    (completion, {"response_format": {"type": "json_schema", "json_schema": {"schema": INTEGER}}}, r"[1-9]\d"),
    (generate, {"json_schema": json.dumps(INTEGER)}, r"[1-9]\d"),
    (chat, {"regex": "(AC|CA){3}"}, "(AC|CA){3}"),
    (generate, {"regex": "(AC|CA){3}"}, "(AC|CA){3}"),
    (completion, {"ebnf": 'root ::= pair pair\npair ::= "D" [AB]'}, "(D[AB]){2}"),
    (generate, {"ebnf": 'start: "D" /[AB]/ "C"'}, "D[AB]C"),
]


@pytest.mark.parametrize(("route", "fields", "pattern"), GRAMMARS, ids=[f"{r.__name__} {f}" for r, f, _ in GRAMMARS])
@pytest.mark.parametrize(
    "plan", [{}, {"custom_params": {"outrider": {"drafter": "ngram", "k": 4}}}], ids=["off", "on"]
)
def test_an_answer_follows_its_grammar(
    engine: Engine, route: Any, fields: dict[str, Any], pattern: str, plan: dict[str, Any]
) -> None:
    """Every way to name a grammar holds the answer to it, to its end, even when the end is to be ignored."""
    for extra in ({}, {"ignore_eos": True}):
        text, finish = text_of(engine, route(engine, **fields, **plan, **extra))
        assert re.fullmatch(pattern, text), text
        assert finish is not None and finish.kind == "stop"


def test_text_is_no_grammar(engine: Engine) -> None:
    """`response_format` of type text asks for nothing."""
    assert chat(engine, response_format={"type": "text"}).grammar is None


REFUSED = [
    (chat, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "bogus"}}}},
     "response_format.json_schema.schema", "bogus"),
    (chat, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
     "response_format.json_schema.schema", "not"),
    (chat, {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
     "response_format.json_schema.schema", "required"),
    (chat, {"response_format": {"type": "text", "json_schema": {"schema": {}}}}, "response_format", "json_schema"),
    (chat, {"response_format": {"type": "json_object"}}, "response_format", "no token of this model"),
    (chat, {"regex": "(A"}, "regex", "unclosed"),
    (chat, {"regex": "A", "ebnf": 'root ::= "A"'}, "ebnf", "regex is there already"),
    (chat, {"regex": "A", "response_format": {"type": "json_object"}}, "response_format", "regex is there already"),
    (completion, {"ebnf": "root := 3"}, "ebnf", "Expected"),
    (generate, {"json_schema": "{"}, "sampling_params.json_schema", "unexpected end"),
    (generate, {"json_schema": "{}", "regex": "A"}, "sampling_params.regex", "sampling_params.json_schema"),
    (generate, {"structural_tag": "{}"}, "sampling_params.structural_tag", "not supported"),
    (chat, {"top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs"),
]  # fmt: skip


@pytest.mark.parametrize(("route", "fields", "param", "said"), REFUSED, ids=[f"{r[2]} {r[3]}" for r in REFUSED])
def test_what_is_refused_is_named(engine: Engine, route: Any, fields: dict[str, Any], param: str, said: str) -> None:
    """A bad grammar, or a second one, is the request's fault: the error has the field and the reason."""
    with pytest.raises(InvalidRequest, match=re.escape(said)) as caught:
        route(engine, **fields)
    assert caught.value.param == param


def test_the_end_token_ends_an_answer_unless_ignored(engine: Engine) -> None:
    """Ignoring the end without a grammar leaves it out of the stop tokens, and a grammar puts it back."""
    assert chat(engine).stop_token_ids == {EOS}
    assert chat(engine, ignore_eos=True).stop_token_ids == frozenset()
    assert chat(engine, ignore_eos=True, regex="A+").stop_token_ids == {EOS}
