"""The whole path on the real model: policy, engine process, report, SDKs, and a prompt given up half-read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import openai
import pytest
import pytest_asyncio

from outrider import AsyncClient, ContextLengthExceeded, InvalidRequest, ModelNotFound
from outrider.app import Gateway, serving
from outrider.config import DEFAULT_MODEL, Config, ServerSection, packaged_data
from outrider.workloads.suite import Job, load_prompts

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

PROMPTS = {prompt.name: prompt for prompt in load_prompts(packaged_data("workloads") / "tasks.yaml")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(model_folder: Path) -> AsyncIterator[Gateway]:
    """The default configuration on a free port."""
    async with serving(Config(server=ServerSection(port=0, shutdown_grace_s=0))) as one:
        await asyncio.wait_for(one.pool.lanes[0].wait_until_ready(), 120)
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(gateway: Gateway) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"{gateway.url}/v1") as one:
        yield one


async def test_a_quote_is_speculated_and_its_text_is_the_plain_one(client: AsyncClient) -> None:
    """The policy picks a look-up by itself; drafts are accepted; the text is what `off` writes."""
    prompt = PROMPTS["quote-water"]
    decided = await client.chat(prompt.messages, temperature=0, max_tokens=64)
    plain = await client.chat(prompt.messages, temperature=0, max_tokens=64, off=True)
    assert decided.text == plain.text
    assert decided.report.task == "quote" and decided.report.effective.drafter == "suffix"
    observed = decided.report.observed
    assert observed.num_accepted > 10 and observed.accept_length > 2
    assert sum(observed.accepted_histogram) == observed.num_verify_steps
    assert (plain.report.effective.drafter, plain.report.effective.k, plain.report.observed) == ("off", 0, None)
    assert plain.report.requested == {"off": True}
    assert decided.raw["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] == observed.num_accepted
    assert "metrics" not in plain.raw and "sglext" not in decided.raw


async def test_hot_creative_text_is_not_speculated(client: AsyncClient) -> None:
    """Temperature and task decide; the reasons say so; the same seed gives the same text streamed."""
    prompt = PROMPTS["creative-sea"]
    fields = {"temperature": 1.2, "max_tokens": 24, "extra_body": {"seed": 5}}
    whole = await client.chat(prompt.messages, **fields)
    async with client.chat_stream(prompt.messages, drafter="ngram", k=4, verbose=True, **fields) as stream:
        streamed = await stream.result()
    assert whole.report.effective.drafter == "off" and whole.report.workload == "creative"
    assert whole.report.reasons
    assert (streamed.report.rule, streamed.report.effective.k) == ("request", 4)
    assert streamed.report.inputs["features"]["temperature"] == 1.2
    assert streamed.text == whole.text


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "gpt-9"}, ModelNotFound, "model"),
        ({"max_tokens": 9000}, ContextLengthExceeded, "messages"),
        ({"extra_body": {"tools": [{"type": "function"}]}}, InvalidRequest, "tools[0].function"),
        ({"extra_body": {"outrider": {"kk": 3}}}, InvalidRequest, "outrider.kk"),
    ],
)
async def test_refusals_of_gateway_and_engine_name_the_field(
    client: AsyncClient, fields: dict, error: type, param: str
) -> None:
    """The same class and field whoever refuses, streamed or not."""
    with pytest.raises(error) as whole:
        await client.chat("Hi", **fields)
    with pytest.raises(error) as streamed:
        async with client.chat_stream("Hi", **fields):
            pass
    assert (whole.value.param, streamed.value.param) == (param, param)
    assert whole.value.request_id


async def test_the_openai_sdk_works_unmodified(gateway: Gateway) -> None:
    """Chat streamed and not, completions, models, extra_body hints, typed errors."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as sdk:
        assert [m.id async for m in sdk.models.list()] == [DEFAULT_MODEL]
        create = sdk.chat.completions.create
        whole = await create(model=DEFAULT_MODEL, messages=messages, temperature=0, max_tokens=16)
        assert "Paris" in whole.choices[0].message.content
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 16
        stream = await create(
            model=DEFAULT_MODEL, messages=messages, temperature=0, max_tokens=16, stream=True,
            stream_options={"include_usage": True}, extra_body={"outrider": {"k": 2}},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
        finish = next(c for c in chunks if c.choices and c.choices[0].finish_reason)
        assert finish.outrider["effective"]["k"] == 2  # of the drafter that this machine's costs speak for
        done = await sdk.completions.create(model=DEFAULT_MODEL, prompt="The capital of France is", temperature=0)
        assert "Paris" in done.choices[0].text
        with pytest.raises(openai.BadRequestError) as bad:
            await create(model=DEFAULT_MODEL, messages=messages, temperature=-1)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            await create(model="gpt-9", messages=messages)


async def test_a_prompt_that_is_being_read_is_given_up(gateway: Gateway) -> None:
    """Leaving during a prefill of many chunks frees the slot after the chunk in progress, not after the prompt."""
    lane = gateway.pool.lanes[0]
    text = " ".join(f"Item {i} costs {i * 7 % 90} crowns." for i in range(150))

    def body(salt: str) -> dict[str, object]:
        messages = [{"role": "user", "content": text}]
        return {"messages": messages, "max_tokens": 4, "stream": True, "cache_salt": salt}

    async def num_running(session: aiohttp.ClientSession) -> int:
        async with session.get(f"{lane.url}/v1/loads") as response:
            return (await response.json())["loads"][0]["num_running_reqs"]

    async with aiohttp.ClientSession() as session, asyncio.timeout(200):
        started = time.monotonic()
        await (await session.post(f"{gateway.url}/v1/chat/completions", json=body("a"))).read()
        whole_s = time.monotonic() - started
        request = asyncio.create_task(session.post(f"{gateway.url}/v1/chat/completions", json=body("b")))
        while not await num_running(session):
            await asyncio.sleep(0.002)
        request.cancel()
        await asyncio.wait([request])
        left = time.monotonic()
        while await num_running(session):
            await asyncio.sleep(0.002)
        freed_s = time.monotonic() - left
    assert freed_s < whole_s / 4, (freed_s, whole_s)


async def test_concurrent_answers_are_the_lonely_ones(client: AsyncClient) -> None:
    """Greedy answers do not depend on who else is served, nor on the plans of the others."""
    names = ["code-stack", "quote-bees", "translate-train", "maths-apples"]
    chosen: list[Job] = [PROMPTS[name] for name in names]
    alone = [(await client.chat(p.messages, temperature=0, max_tokens=24, off=True)).text for p in chosen]
    many = await asyncio.gather(
        *(client.chat(p.messages, temperature=0, max_tokens=24, k=k) for p in chosen for k in (0, 1, 3, 6))
    )
    assert [answer.text for answer in many] == [text for text in alone for _ in range(4)]
