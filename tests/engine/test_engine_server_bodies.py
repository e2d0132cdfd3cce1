"""Bodies of requests over real HTTP: what is wrong is refused by the field's name, and no body is a server error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.test_engine_server import Client, chat, serve


@pytest.fixture
async def client(toy_folder: Path) -> AsyncIterator[Client]:
    async for one in serve(toy_folder):
        yield one


BAD_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"content": "A"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 5000}, "messages"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"seed": "x"}, "seed"),
    ({"stream": 1}, "stream"),
    ({"rid": "no spaces"}, "rid"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"logprobs": 3}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"frequency_penalty": 2.5}, "frequency_penalty"),
    ({"presence_penalty": -2.5}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"prediction": {"type": "text", "content": "x"}}, "prediction.type"),
    ({"prediction": "x"}, "prediction"),
    ({"custom_params": {"outrider": {"drafter": "prediction", "k": 2}}}, "prediction"),
    ({"custom_params": {"outrider": {"drafter": "draft_model", "k": 2}}}, "custom_params.outrider"),
    ({"logit_bias": {"3": 101}}, "logit_bias"),
    ({"logit_bias": {"A": 1}}, "logit_bias"),
    ({"logit_bias": {"64": 1}}, "logit_bias"),
    ({"custom_params": {"outrider": 3}}, "custom_params.outrider"),
    ({"custom_params": {"outrider": {"drafter": "eagle9", "k": 2}}}, "custom_params.outrider"),
    ({"custom_params": {"outrider": {"drafter": "ngram", "k": 99}}}, "custom_params.outrider"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHATS, ids=[f"{p}-{i}" for i, (_, p) in enumerate(BAD_CHATS)])
async def test_bad_chats_name_the_field(client: Client, fields: dict[str, Any], param: str) -> None:
    """A 400 in SGLang's flat shape whose `param` is the field, whether it streams or not."""
    for stream in (False, True):
        status, error = await client.post("/v1/chat/completions", chat(**({"stream": stream} | fields)))
        assert (status, error["object"]) == (400, "error"), error
        assert (error["param"] or "").startswith(param), error
        assert error["message"] and set(error) == {"object", "message", "type", "param", "code"}


async def test_bad_generates_and_bodies(client: Client) -> None:
    """/generate has an error object of its own; unknown sampling keys are refused, as SGLang refuses them."""
    for body, param in (
        ({"text": "A", "sampling_params": {"temprature": 1}}, "sampling_params.temprature"),
        ({"text": "A", "sampling_params": {"repetition_penalty": 2.5}}, "sampling_params.repetition_penalty"),
        ({"text": "A", "sampling_params": {"logit_bias": {"99": 1}}}, "sampling_params.logit_bias"),
        ({"text": "A", "sampling_params": {"regex": "A"}}, "sampling_params.regex"),
        ({"text": "A", "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len"),
        ({"text": "A", "return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"text": "A", "input_ids": [1]}, "text"),
        ({}, "text"),
        ({"input_ids": [64]}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"text": "A" * 3000}, "text"),
    ):
        status, answer = await client.post("/generate", body)
        assert (status, answer["error"]["param"]) == (400, param), answer
    async with client.session.post(
        client.url + "/v1/completions", data=b"{", headers={"Content-Type": "application/json"}
    ) as r:
        assert (r.status, (await r.json())["param"]) == (400, "body")
    async with client.session.post(client.url + "/v1/completions", data=b"{}") as r:
        assert r.status == 400


async def test_fields_without_meaning_here(client: Client) -> None:
    """Neutral values of unsupported fields and labels are accepted; a name that nobody knows is refused."""
    body = chat(n=1, logprobs=False, tools=[], user="me", frequency_penalty=0, response_format={"type": "text"})
    async with client.session.post(client.url + "/v1/chat/completions", json=body) as response:
        assert response.status == 200 and "x-outrider-ignored" not in response.headers
    for name, hint in {"temprature": "; did you mean temperature?", "foo": ""}.items():
        async with client.session.post(client.url + "/v1/chat/completions", json=chat(**{name: 1})) as response:
            error = await response.json()
        assert (response.status, error["param"]) == (400, name)
        assert error["message"] == f"{name} is not supported by the embedded engine{hint}"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = """
messages model temperature top_p top_k min_p max_tokens stop seed stream n rid stream_options custom_params
stop_token_ids ignore_eos logprobs tools prompt user x
"""
field_names = st.sampled_from(FIELDS.split())


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.dictionaries(field_names, json_values, max_size=4),
    route=st.sampled_from(["chat/completions", "completions"]),
)
async def test_no_body_is_a_server_error(client: Client, fields: dict[str, Any], route: str) -> None:
    """Whatever valid JSON comes, the answer is a 200 or a 4xx."""
    body = {"max_tokens": 2, "prompt": "AB"} | (chat(max_tokens=2) if route.startswith("chat") else {}) | fields
    async with client.session.post(f"{client.url}/v1/{route}", json=body) as response:
        await response.read()
        assert response.status == 200 or 400 <= response.status < 500, await response.text()
