"""Responses and messages by way of chat, through the clients that their makers ship."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import anthropic
import openai
import pytest

from gateway.world import world
from outrider.runtimes.scripted_replies import SENTENCE, Reply, event, json_reply

TEXT = "".join(SENTENCE)
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EVENTS = (("Content-Type", "text/event-stream"),)
USAGE = {
    "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 2},
}  # fmt: skip


def chunk(delta, reason=None, **choice):
    return event({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta,
                  "finish_reason": reason, **choice}], "usage": None})  # fmt: skip


def streamed(*chunks):
    """A chat stream with usage and its end."""
    usage = event({"choices": [], "usage": USAGE})
    return Reply(200, EVENTS, (*chunks, usage, b"data: [DONE]\n\n"))


def call(index, name=None, arguments=None):
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"index": index, "type": "function", "function": function} | ({"id": f"call_{index}"} if name else {})


#: Reasoning, text in two pieces of which one is cut inside a character's JSON, two calls in one delta.
RICH = streamed(
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "Let me "}),
    chunk({"reasoning_content": "see.", "content": None}),
    chunk({"content": "It is é"}),
    chunk({"content": "€."}),
    chunk({"tool_calls": [call(0, "add", '{"a":1'), call(1, "sub", '{"b"')]}),
    chunk({"tool_calls": [call(0, arguments=',"c":2}'), call(1, arguments=":3}")]}),
    chunk({}, "tool_calls"),
)
WHOLE_RICH = {
    "choices": [{
        "index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": "It is é€.", "reasoning_content": "Let me see.", "tool_calls": [
                call(0, "add", '{"a":1,"c":2}'), call(1, "sub", '{"b":3}'),
            ],
        },
    }],
    "usage": USAGE,
}  # fmt: skip
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}, "description": "Adds.", "strict": True}


def rich(request):
    return RICH if request.json().get("stream") else json_reply(WHOLE_RICH)


@asynccontextmanager
async def clients(w):
    """OpenAI's and Anthropic's, without retries."""
    url = w.gateway.url
    async with (
        openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as theirs,
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as others,
    ):
        yield theirs, others


async def test_the_openai_sdk_creates_and_streams_responses():
    """Text, usage, status, our report; the sequence of events is the documented one, numbered without a gap."""
    async with world() as w, clients(w) as (client, _):
        whole = await client.responses.create(
            model="scripted", input="hello", instructions="Be brief.", max_output_tokens=9, temperature=0,
            extra_body={"outrider": {"drafter": "ngram", "k": 3}},
        )  # fmt: skip
        assert (whole.output_text, whole.status, whole.store) == (TEXT, "completed", False)
        assert whole.usage.output_tokens == len(SENTENCE)
        assert whole.model_extra["outrider"]["effective"] == {"drafter": "ngram", "k": 3}
        sent = w.upstream.json()
        assert sent["messages"] == [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"},
        ]  # fmt: skip
        assert (sent["max_completion_tokens"], sent["temperature"]) == (9, 0)
        async with client.responses.stream(model="scripted", input="hello") as stream:
            events = [one async for one in stream]
            final = await stream.get_final_response()
    kinds = [one.type for one in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [one.sequence_number for one in events] == list(range(len(events)))
    assert final.output_text == TEXT and final.usage.total_tokens == 5 + len(SENTENCE)


async def test_the_anthropic_sdk_creates_and_streams_messages():
    """Text, stop reason, usage, our report; blocks begin and end."""
    async with world() as w, clients(w) as (_, client):
        whole = await client.messages.create(
            model="scripted", max_tokens=9, system=[{"type": "text", "text": "Be brief."}],
            messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}], stop_sequences=["END"],
        )  # fmt: skip
        assert (whole.content[0].text, whole.stop_reason) == (TEXT, "end_turn")
        assert whole.usage.output_tokens == len(SENTENCE)
        assert whole.model_extra["outrider"]["effective"]
        sent = w.upstream.json()
        assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
        assert (sent["stop"], sent["max_tokens"]) == (["END"], 9)
        async with client.messages.stream(
            model="scripted", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
        ) as stream:
            assert "".join([text async for text in stream.text_stream]) == TEXT
            final = await stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens, final.usage.input_tokens) == ("end_turn", 6, 5)


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_text_and_two_calls_in_one_delta_as_responses(stream):
    """Each is an item; streamed and whole give the same output."""
    async with world(rich) as w, clients(w) as (client, _):
        options = {"model": "scripted", "input": "add", "tools": [TOOL]}
        if stream:
            async with client.responses.stream(**options) as events:
                answer = await events.get_final_response()
        else:
            answer = await client.responses.create(**options)
        sent = w.upstream.json()
    reasoning, message, add, sub = answer.output
    assert reasoning.content[0].text == "Let me see."
    assert message.content[0].text == "It is é€."
    assert (add.name, add.call_id, json.loads(add.arguments)) == ("add", "call_0", {"a": 1, "c": 2})
    assert (sub.name, sub.call_id, json.loads(sub.arguments)) == ("sub", "call_1", {"b": 3})
    assert {item.status for item in answer.output} == {"completed"}
    assert answer.usage.input_tokens_details.cached_tokens == 2
    function = {key: TOOL[key] for key in ("name", "parameters", "description", "strict")}
    assert sent["tools"] == [{"type": "function", "function": function}]


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_text_and_two_calls_in_one_delta_as_messages(stream):
    """Each is a block, and blocks do not overlap; streamed and whole give the same content."""
    tool = {"name": "add", "input_schema": {"type": "object"}}
    options = {"model": "scripted", "max_tokens": 9, "messages": [{"role": "user", "content": "add"}]}
    options |= {"tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    async with world(rich) as w, clients(w) as (_, client):
        if stream:
            async with client.messages.stream(**options) as events:
                kinds = [(one.type, getattr(one, "index", None)) async for one in events]
                answer = await events.get_final_message()
            starts = [one for one in kinds if one[0] in ("content_block_start", "content_block_stop")]
            assert starts == [(kind, i) for i in range(4) for kind in ("content_block_start", "content_block_stop")]
        else:
            answer = await client.messages.create(**options)
        sent = w.upstream.json()
    thinking, text, add, sub = answer.content
    assert (thinking.thinking, text.text) == ("Let me see.", "It is é€.")
    assert (add.name, add.id, add.input) == ("add", "call_0", {"a": 1, "c": 2})
    assert (sub.name, sub.id, sub.input) == ("sub", "call_1", {"b": 3})
    assert answer.stop_reason == "tool_use"
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens) == (7, 2)
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("required", False)


async def test_calls_and_their_results_go_back_as_chat_s():
    """Of both routes: the same conversation becomes the same messages."""
    calls = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}]}  # fmt: skip
    expected = [{"role": "user", "content": "add"}, calls, {"role": "tool", "tool_call_id": "c1", "content": "2"}]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "add"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
    ]
    messages = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
    ]
    async with world() as w:
        for path, body in ((RESPONSES, {"input": items}), (MESSAGES, {"messages": messages, "max_tokens": 4})):
            async with w.post(body, path) as response:
                assert response.status == 200
            assert w.upstream.json()["messages"] == expected


async def test_an_answer_goes_back_as_it_came():
    """With its thinking, which is not said again to the model, as in a conversation that is stored here."""
    asked, call_ids = {"role": "user", "content": "add"}, ("call_0", "call_1")
    expected = [asked, {"role": "assistant", "content": "It is é€.", "tool_calls": [
        {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"c":2}'}},
        {"id": "call_1", "type": "function", "function": {"name": "sub", "arguments": '{"b":3}'}}]},
        *({"role": "tool", "tool_call_id": one, "content": "2"} for one in call_ids)]  # fmt: skip
    async with world(rich) as w, clients(w) as (client, other):
        answer = await client.responses.create(model="scripted", input=[asked])
        results = [{"type": "function_call_output", "call_id": one, "output": "2"} for one in call_ids]
        await client.responses.create(model="scripted", input=[asked, *answer.output, *results])
        assert w.upstream.json()["messages"] == expected
        said = await other.messages.create(model="scripted", max_tokens=9, messages=[asked])
        results = [{"type": "tool_result", "tool_use_id": one, "content": "2"} for one in call_ids]
        turns = [asked, {"role": "assistant", "content": said.content}, {"role": "user", "content": results}]
        await other.messages.create(model="scripted", max_tokens=9, messages=turns)
        assert w.upstream.json()["messages"] == expected
