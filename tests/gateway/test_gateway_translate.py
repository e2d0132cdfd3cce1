"""Responses and messages by way of chat, through the clients that their makers ship."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import anthropic
import openai
import pytest

from gateway.world import CHAT, world
from outrider.config import RunsSection
from outrider.runtimes.scripted_replies import SENTENCE, Fault, Reply, chat_reply, event, json_reply

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


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (RESPONSES, {"reasoning": {"effort": "low"}}, "reasoning"),
        (RESPONSES, {"truncation": "auto"}, "truncation"),
        (RESPONSES, {"include": ["file_search_call.results"]}, "include"),
        (RESPONSES, {"conversation": "c"}, "conversation"),
        (RESPONSES, {"surprise": 1}, "surprise"),
        (RESPONSES, {"top_logprobs": 3}, "top_logprobs"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (RESPONSES, {"tools": [TOOL | {"defer": True}]}, "tools[0].defer"),
        (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
        (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
        (RESPONSES, {"text": {"format": {"type": "x"}}}, "text.format.type"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        (RESPONSES, {"input": [{"role": "critic", "content": "x"}]}, "input[0].role"),
        (RESPONSES, {"input": [3]}, "input[0]"),
        (RESPONSES, {"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input[0].encrypted_content"),
        (RESPONSES, {"input": [{"type": "reasoning", "content": [{"type": "text"}]}]}, "input[0].content[0].type"),
        (RESPONSES, {"store": True}, "store"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"outrider": {"background": True}}, "outrider.background"),
        (RESPONSES, {"previous_response_id": "resp_x"}, "previous_response_id"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        (MESSAGES, {"container": "x"}, "container"),
        (MESSAGES, {"surprise": 1}, "surprise"),
        (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        (MESSAGES, {"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "thinking"}]}]},
            "messages[0].content[0].type",
        ),
        (
            MESSAGES,
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "theirs"}]}
                ]
            },
            "messages[0].content[0].signature",
        ),
        (MESSAGES, {"system": [{"type": "image"}]}, "system[0].type"),
    ],
)
async def test_what_chat_cannot_carry_is_refused_by_name(path, fields, param):
    """Nothing is sent to the lane."""
    body = {
        RESPONSES: {"input": "hello"},
        MESSAGES: {"max_tokens": 3, "messages": [{"role": "user", "content": "x"}]},
    }
    async with world() as w, w.post(body[path] | fields, path) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param
        assert not [one for one in w.scripted.requests if one.path == CHAT]


async def test_structured_output_and_the_ends_that_are_not_the_answer_s_own():
    """A format of responses is one of chat; a cut answer is incomplete on one route, at its limit on the other."""
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}

    def cut(request):
        return chat_reply(stream=bool(request.json().get("stream")), finish_reason="length", include_usage=True)

    async with world(cut) as w, clients(w) as (client, other):
        answer = await client.responses.create(model="scripted", input="x", text={"format": schema})
        sent = w.upstream.json()["response_format"]
        async with client.responses.stream(model="scripted", input="x") as stream:
            last = [one async for one in stream][-1]
        message = await other.messages.create(
            model="scripted", max_tokens=3, messages=[{"role": "user", "content": "x"}]
        )
    assert sent == {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}}
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert last.type == "response.incomplete"
    assert message.stop_reason == "max_tokens"


async def test_a_stop_sequence_is_named():
    """Where the lane says which one matched."""
    reply = {"choices": [{"finish_reason": "stop", "matched_stop": "END", "message": {"content": "a"}}]}
    async with world(lambda _request: json_reply(reply)) as w, clients(w) as (_, client):
        message = await client.messages.create(
            model="scripted", max_tokens=3, messages=[{"role": "user", "content": "x"}], stop_sequences=["END"]
        )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
async def test_failures_are_told_in_the_route_s_own_shape(path):
    """Before the first event by a status, after it by an event; nothing pretends to be complete."""
    body = {
        RESPONSES: {"input": "hello"},
        MESSAGES: {"max_tokens": 3, "messages": [{"role": "user", "content": "x"}]},
    }
    broken = Reply(200, EVENTS, (chunk({"role": "assistant"}), chunk({"content": "a"}), 0.05, Fault.CLOSE))
    replies = iter((Reply(503, (), (b"{}",)), broken))
    async with world(lambda _request: next(replies)) as w:
        async with w.post(body[path], path) as response:
            error = await response.json()
            assert response.status == 503 and error["error"]["message"]
            assert error.get("type") == ("error" if path == MESSAGES else None)
        async with w.post(body[path] | {"stream": True}, path) as response:
            raw = (await response.read()).decode()
        last = json.loads(raw.strip().rpartition("data: ")[2])
        assert last["type"] == "error" and "event: error" in raw
        assert "response.completed" not in raw and "message_stop" not in raw
        assert w.outcomes[-1][1].status == 502


@asynccontextmanager
async def stored(folder, reply=None):
    runs = RunsSection(url=f"sqlite+aiosqlite:///{folder}/runs.sqlite")
    async with world(reply, runs=runs) as w, clients(w) as (client, _):
        yield w, client


async def test_stored_responses_are_got_listed_and_deleted(tmp_path):
    """The same object, the items of its input; unknown ones are a 404 with our code."""
    async with stored(tmp_path) as (_w, client):
        made = await client.responses.create(model="scripted", input="hello", metadata={"a": "b"})
        assert made.store is True
        got = await client.responses.retrieve(made.id)
        assert got.output == made.output and got.metadata == {"a": "b"} and got.store is True
        items = (await client.responses.input_items.list(made.id)).data
        assert [(item.role, item.content[0].text) for item in items] == [("user", "hello")]
        unkept = await client.responses.create(model="scripted", input="hello", store=False)
        assert unkept.store is False
        await client.responses.delete(made.id)
        for missing in (made.id, unkept.id):
            with pytest.raises(openai.NotFoundError) as caught:
                await client.responses.retrieve(missing)
            assert caught.value.code == "run_not_found"


async def test_a_conversation_is_continued(tmp_path):
    """By the id of the last response, streamed ones too; instructions are not carried over."""
    async with stored(tmp_path) as (w, client):
        one = await client.responses.create(model="scripted", input="first", instructions="Old.")
        async with client.responses.stream(model="scripted", input="second", previous_response_id=one.id) as stream:
            two = await stream.get_final_response()
        assert two.store is True
        await client.responses.create(
            model="scripted", input="third", previous_response_id=two.id, instructions="New."
        )
        said = [(m["role"], m["content"]) for m in w.upstream.json()["messages"]]
        assert said == [
            ("system", "New."), ("user", "first"), ("assistant", TEXT), ("user", "second"), ("assistant", TEXT),
            ("user", "third"),
        ]  # fmt: skip
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="scripted", input="x", previous_response_id="resp_missing")
        assert caught.value.param == "previous_response_id"


async def test_a_response_in_the_background_is_polled_and_cancelled(tmp_path):
    """OpenAI's own way: queued at once, completed later under the same id, or cancelled."""

    def slow(request):
        if "hang" in request.body.decode():
            return Reply(200, EVENTS, (Fault.HANG,))
        return chat_reply(stream=bool(request.json().get("stream")), include_usage=True)

    async with stored(tmp_path, slow) as (w, client):
        made = await client.responses.create(model="scripted", input="hello", background=True)
        assert made.status == "queued" and made.background is True
        async with w.http.get(f"{w.gateway.url}/outrider/runs/{made.id}/events") as response:
            await response.read()
        got = await client.responses.retrieve(made.id)
        assert (got.id, got.status, got.output_text) == (made.id, "completed", TEXT)
        hung = await client.responses.create(model="scripted", input="hang", background=True)
        assert (await client.responses.cancel(hung.id)).status == "cancelled"
        stream = await client.responses.create(model="scripted", input="hello", background=True, stream=True)
        events = [one async for one in stream]
        assert events[-1].type == "response.completed" and events[-1].response.output_text == TEXT
        behind = await client.responses.retrieve(
            events[-1].response.id, stream=True, starting_after=events[-1].sequence_number
        )
        assert [event async for event in behind] == [] and behind.response.status_code == 204
        again = await client.responses.retrieve(events[-1].response.id, stream=True, starting_after=3)
        assert [one.sequence_number for one in [one async for one in again]] == list(range(4, len(events)))
