"""The SDK over a real gateway and engine: runs in the background, begun, followed from the middle, cancelled."""

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
