"""Runs and the routes by way of chat on the embedded engine, a process with the toy checkpoint."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from outrider.app import Gateway

PROMPT = "ABCDABDCACBD"
SAID: Any = [{"role": "user", "content": PROMPT}]


async def test_three_routes_a_background_run_and_its_cancel(gateway_with_runs: Gateway) -> None:
    """One greedy text on all of them, speculated where planned; a tool that is not there is refused by name."""
    hints: Any = {"outrider": {"drafter": "ngram", "k": 3}}
    async with (
        openai.AsyncOpenAI(base_url=gateway_with_runs.url + "/v1", api_key="none", max_retries=0) as client,
        anthropic.AsyncAnthropic(base_url=gateway_with_runs.url, api_key="none", max_retries=0) as other,
        aiohttp.ClientSession() as session,
    ):
        chat = await client.chat.completions.create(
            model="toy", messages=SAID, temperature=0, max_tokens=24, extra_body=hints
        )
        text = chat.choices[0].message.content
        response = await client.responses.create(
            model="toy", input=PROMPT, temperature=0, max_output_tokens=24, extra_body=hints
        )
        assert response.output_text == text and response.status == "incomplete"
        assert response.usage is not None and response.usage.output_tokens == 24
        assert response.model_extra is not None
        assert response.model_extra["outrider"]["observed"]["num_verify_steps"] > 0
        async with other.messages.stream(
            model="toy", messages=SAID, max_tokens=24, extra_body=hints | {"temperature": 0}
        ) as stream:
            message = await stream.get_final_message()
        assert message.content[0].type == "text" and message.content[0].text == text
        assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 24)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(
                model="toy",
                input="x",
                tools=[{"type": "function", "name": "f", "parameters": {}, "strict": False}],
                tool_choice={"type": "function", "name": "g"},
            )
        assert caught.value.param == "tool_choice"
        made = await client.responses.create(
            model="toy", input=PROMPT, temperature=0, max_output_tokens=24, background=True
        )
        async with session.get(f"{gateway_with_runs.url}/outrider/runs/{made.id}/events") as events:
            await events.read()
        assert (await client.responses.retrieve(made.id)).output_text == text
        long = await client.responses.create(model="toy", input=PROMPT, background=True)
        while (await client.responses.retrieve(long.id)).status == "queued":
            await asyncio.sleep(0.01)
        assert (await client.responses.cancel(long.id)).status == "cancelled"
        async with asyncio.timeout(60):
            while gateway_with_runs.pool.lanes[0].num_in_flight:
                await asyncio.sleep(0.01)
