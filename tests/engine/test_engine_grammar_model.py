"""The real model under a JSON schema."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from engine.test_engine_grammar import run
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.grammar import Grammar
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.speculation.target import SamplingLaw

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["capital", "port", "village"]},
        "people": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
    },
    "required": ["city", "kind", "people", "rivers"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def fits_schema(text: str) -> bool:
    data = json.loads(text)
    return (
        list(data) == list(SCHEMA["properties"])
        and len(data["city"]) <= 12
        and data["kind"] in ("capital", "port", "village")
        and 0 <= data["people"] <= 99999999
        and len(data["rivers"]) <= 2
        and all(len(river) <= 8 for river in data["rivers"])
    )


@pytest.mark.model
@pytest.mark.timeout(300)
def test_every_answer_under_a_schema_is_valid(model_folder: Path) -> None:
    """On the real model, hot and greedy, with and without speculation; greedy texts do not depend on k."""
    engine = Engine(model_folder, EngineLimits(max_running=16))
    grammar: Grammar = engine.grammars.compile("json", json.dumps(SCHEMA))
    eos = frozenset(engine.model.config.eos_token_ids)
    requests = []
    for name, temperature in itertools.product(("Paris", "Oslo"), (0.0, 1.5)):
        chat = [{"role": "user", "content": f'Describe {name}, as {{"city":"Rome","kind":"capital","people":'}]
        prompt = tuple(engine.tokenizer.encode_chat(chat))
        for k in (0, 2, 8):
            plan = Plan("ngram", k) if k else PLAN_OFF
            rid = f"{name} {temperature} {k}"
            requests.append(
                GenerateRequest(rid, prompt, SamplingLaw(temperature), 200, plan, 7, (), eos, grammar=grammar)
            )
    ended = run(engine, requests)
    for rid, (text, finish, _) in ended.items():
        assert finish == Finish("stop") and fits_schema(text), (rid, text)
        if " 0.0 " in rid:
            assert text == ended[rid.rsplit(" ", 1)[0] + " 0"][0], rid
    assert sum(num_accepted for _, _, num_accepted in ended.values()) > 0
