"""The SDK over a real gateway and engine: what runs in the background and what is kept, from begin to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outrider import AsyncClient, RunNotFound, ServiceError, TextDelta
from outrider.app import Gateway

PROMPT = "ABCDABDCACBD"


@pytest.fixture
async def client(gateway_with_runs: Gateway) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(gateway_with_runs.url + "/v1") as one:
        yield one


async def test_background_runs(client: AsyncClient) -> None:
    """The run's text is the chat's, whole or from any event on; what is cancelled ends with an error and is kept."""
    fields: Any = {"temperature": 0, "max_tokens": 24, "drafter": "ngram", "k": 3}
    chat = await client.chat(PROMPT, **fields)
    run = await client.runs.start(PROMPT, **fields)
    result = await client.runs.result(run.id)
    assert result.text == chat.text and result.finish_reason == "length"
    assert result.report is not None and result.report.effective.k == 3
    async with client.runs.events(run.id) as stream:
        first = await anext(stream)
        seen = stream.last_event_id
    assert isinstance(first, TextDelta) and seen is not None
    async with client.runs.events(run.id, after=seen) as stream:
        assert first.text + (await stream.result()).text == chat.text
    shown = await client.runs.get(run.id)
    assert shown.status == "completed" and shown.num_events == stream.last_event_id and shown.ended_at is not None
    long = await client.runs.start(PROMPT, temperature=0)
    while (await client.runs.get(long.id)).status == "queued":
        await asyncio.sleep(0.01)
    ended = await client.runs.cancel(long.id)
    assert ended.status == "cancelled" and ended.is_over and ended.error is not None
    with pytest.raises(ServiceError):
        await client.runs.result(long.id)
    await client.runs.delete(run.id)
    with pytest.raises(RunNotFound):
        await client.runs.get(run.id)


async def test_responses(client: AsyncClient) -> None:
    """Whole, streamed and in the background they say what a chat says; kept ones are shown, followed and deleted."""
    fields: Any = {"temperature": 0, "max_tokens": 16, "drafter": "ngram", "k": 3}
    chat = await client.chat(PROMPT, **fields)
    whole = await client.responses(PROMPT, **fields)
    async with client.responses.stream(PROMPT, **fields) as stream:
        types = [event.type async for event in stream]
        streamed = await stream.result()
    assert whole.text == streamed.text == stream.text == chat.text and whole.status == "incomplete"
    assert types[0] == "response.created" and types[-1] == "response.incomplete"
    assert whole.report is not None and streamed.report is not None
    assert whole.report.effective.k == streamed.report.effective.k == 3
    assert whole.usage is not None and whole.usage.output_tokens == 16
    shown = await client.responses.get(whole.id)
    assert (shown.id, shown.text) == (whole.id, chat.text)
    (item,) = await client.responses.input_items(whole.id)
    assert item.content == [{"type": "input_text", "text": PROMPT}]

    async with client.responses.stream(PROMPT, background=True, **fields) as stream:
        await anext(stream)
        assert stream.id is not None
    async with client.responses.events(stream.id) as followed:
        numbers = [event.sequence_number async for event in followed]
        assert numbers == list(range(len(numbers))) and followed.text == chat.text
    async with client.responses.events(stream.id, after=numbers[-4]) as rest:
        assert [event.sequence_number async for event in rest] == numbers[-3:]
        assert (await rest.result()).text == chat.text
    long = await client.responses(PROMPT, temperature=0, background=True)
    assert long.status in ("queued", "in_progress")
    ended = await client.responses.cancel(long.id)
    assert ended.status == "cancelled" and ended.error is not None
    await client.responses.delete(whole.id)
    with pytest.raises(RunNotFound):
        await client.responses.get(whole.id)
