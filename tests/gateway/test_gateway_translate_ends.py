"""Other makers' routes by way of chat: what is refused, how answers end, and what is stored."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import openai
import pytest

from gateway.test_gateway_translate import EVENTS, MESSAGES, RESPONSES, TEXT, TOOL, chunk, clients
from gateway.world import CHAT, world
from outrider.config import RunsSection
from outrider.runtimes.scripted_replies import Fault, Reply, chat_reply, json_reply


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
    assert [one.output[-1].status for one in (answer, last.response)] == ["incomplete", "incomplete"]
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
