"""The OpenAI SDK, unmodified, against the gateway."""

from __future__ import annotations

import asyncio

import openai
import pytest

from gateway.world import MESSAGES, world
from outrider.core import SpecStats
from outrider.runtimes.scripted_replies import SENTENCE, Fault, Reply, chat_reply

TEXT = "".join(SENTENCE)


async def test_async_client_whole_and_streaming():
    """Text, finish reason, usage, request id, and our report among the extra fields."""
    async with world() as w, openai.AsyncOpenAI(base_url=w.gateway.url + "/v1", api_key="none") as client:
        whole = await client.chat.completions.create(
            model="scripted", messages=MESSAGES, extra_body={"outrider": {"drafter": "ngram", "k": 3}}
        )
        assert whole.choices[0].message.content == TEXT
        assert whole._request_id
        assert whole.model_extra["outrider"]["effective"] == {"drafter": "ngram", "k": 3}
        stream = await client.chat.completions.create(
            model="scripted", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
        assert chunks[-1].usage.completion_tokens == len(SENTENCE)
        assert [c for c in chunks if c.choices][-1].choices[0].finish_reason == "stop"


async def test_stream_helper_and_completions():
    """The `.stream()` helper's accumulated answer, text completions, the list of models."""
    reply = None
    async with world(reply) as w, openai.AsyncOpenAI(base_url=w.gateway.url + "/v1", api_key="none") as client:
        async with client.chat.completions.stream(model="scripted", messages=MESSAGES) as stream:
            async for _event in stream:
                pass
            assert (await stream.get_final_completion()).choices[0].message.content == TEXT
        text = await client.completions.create(model="scripted", prompt="hello", max_tokens=8)
        assert text.choices[0].text == TEXT
        pieces = [one.choices[0].text async for one in await client.completions.create(
            model="scripted", prompt="hello", stream=True) if one.choices]  # fmt: skip
        assert "".join(pieces) == TEXT
        assert [one.id async for one in client.models.list()] == ["scripted"]


async def test_sync_client():
    """The blocking client from a thread, whole and streaming."""
    async with world() as w:

        def ask():
            with openai.OpenAI(base_url=w.gateway.url + "/v1", api_key="none") as client:
                whole = client.chat.completions.create(model="scripted", messages=MESSAGES)
                stream = client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
                pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
                return whole.choices[0].message.content, "".join(pieces)

        assert await asyncio.to_thread(ask) == (TEXT, TEXT)


async def test_errors_become_the_sdks_classes():
    """By status, with code and param where the SDK looks for them."""
    async with (
        world() as w,
        openai.AsyncOpenAI(base_url=w.gateway.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="other", messages=MESSAGES)
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="scripted", messages=MESSAGES, temperature=-1)
        assert bad.value.param == "temperature"
        assert bad.value.request_id


async def test_a_broken_stream_raises():
    """The error event is an exception in the SDK, not a short answer."""
    good = chat_reply(stream=True, stats=SpecStats(1, 1, (0, 1)))
    broken = Reply(200, good.headers, (*good.steps[:3], 0.05, Fault.CLOSE))
    async with (
        world(lambda _request: broken) as w,
        openai.AsyncOpenAI(base_url=w.gateway.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="lane"):
            async for _chunk in stream:
                pass


async def test_raw_and_streaming_responses():
    """The SDK's own ways to the bytes: headers of ours, the parsed answer, and lines of a stream."""
    async with world() as w, openai.AsyncOpenAI(base_url=w.gateway.url + "/v1", api_key="none") as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="scripted", messages=MESSAGES, extra_body={"outrider": {"off": True}}
        )
        assert (raw.headers["x-outrider-drafter"], raw.headers["x-request-id"]) == ("off", raw.request_id)
        assert raw.parse().choices[0].message.content == TEXT
        ask = client.chat.completions.with_streaming_response.create
        async with ask(model="scripted", messages=MESSAGES, stream=True) as response:
            lines = [line async for line in response.iter_lines() if line]
        assert response.headers["content-type"] == "text/event-stream"
        assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
        whole = await client.chat.completions.create(model="scripted", messages=MESSAGES)
        assert whole.choices[0].message.content == TEXT
