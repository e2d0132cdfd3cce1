"""The gateway over two real SGLang servers on a CPU: one that only decodes, one that drafts n-grams."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from outrider.app import Gateway, serving
from outrider.config import load_config
from outrider.runtimes import sglang_env

pytestmark = [pytest.mark.sglang, pytest.mark.model, pytest.mark.timeout(900)]

CONFIG = Path(__file__).parents[2] / "configs" / "sglang-cpu.yaml"
QUOTE = [
    {"role": "user", "content": "Quote this text back: The water will be turned off on Thursday until noon."},
]
READY_S = 400.0


@asynccontextmanager
async def running() -> AsyncIterator[Gateway]:
    """The shipped configuration on a free port, all lanes ready."""
    config = load_config(CONFIG)
    config = config.model_copy(update={"server": config.server.model_copy(update={"port": 0, "shutdown_grace_s": 0})})
    async with serving(config) as gateway:
        async with asyncio.timeout(READY_S):
            await asyncio.gather(*(lane.wait_until_ready() for lane in gateway.pool.lanes))
        yield gateway


async def ask(client: openai.AsyncOpenAI, *, max_tokens: int = 8, **fields):
    """A whole answer, and our report in it."""
    extra = fields.pop("extra_body", {})
    answer = await client.chat.completions.create(
        model="smollm2-135m-instruct", messages=QUOTE, max_tokens=max_tokens, extra_body=extra, **fields
    )
    return answer.choices[0].message.content, answer.model_extra["outrider"]


async def test_requests_find_their_lanes_and_survive_one(model_folder: Path) -> None:
    """Quoting goes to the n-grams, `off` and penalties to the plain lane; one that is killed comes back."""
    if not sglang_env.is_ready():
        pytest.skip("NO SGLANG ENVIRONMENT, SO NO REAL LANE IS TESTED; BUILD IT WITH: make sglang-env")
    async with (
        running() as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0, timeout=300) as client,
    ):
        await _each_goes_to_its_lane(client)
        await _a_killed_lane_comes_back(gateway, client)


async def _each_goes_to_its_lane(client: openai.AsyncOpenAI) -> None:
    text, report = await ask(client, temperature=0)
    assert (report["lane"], report["effective"]) == ("ngram", {"drafter": "ngram", "k": 5})
    assert report["observed"]["num_accepted"] > 0
    plain, report = await ask(client, temperature=0, extra_body={"outrider": {"off": True}})
    assert (report["lane"], report["effective"], report["observed"]) == ("plain", {"drafter": "off", "k": 0}, None)
    assert plain == text
    _, report = await ask(client, temperature=0, extra_body={"outrider": {"k": 2}})
    assert (report["lane"], report["effective"]["k"]) == ("ngram", 2)
    assert not any(report["observed"]["accepted_histogram"][3:])
    _, report = await ask(client, temperature=0.8, presence_penalty=0.5, extra_body={"outrider": {"k": 3}})
    assert report["lane"] == "plain"
    assert any("do not honour all of the sampling" in reason for reason in report["reasons"])


async def _a_killed_lane_comes_back(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    supervisor = next(one for one in gateway.supervisors if one.lane.name == "ngram")
    hurt = asyncio.create_task(ask(client, temperature=0, max_tokens=900, extra_body={"ignore_eos": True}))
    while not supervisor.lane.num_in_flight:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    process = supervisor.process
    assert process is not None
    os.killpg(process.pid, signal.SIGKILL)
    with pytest.raises(openai.APIStatusError) as failed:
        await hurt
    assert failed.value.status_code == 502 and failed.value.body["code"] == "lane_failed"
    async with asyncio.timeout(5):
        while supervisor.lane.is_ready:
            await asyncio.sleep(0.01)
    _, report = await ask(client, temperature=0)
    assert (report["lane"], report["effective"]["drafter"]) == ("plain", "off")
    async with asyncio.timeout(READY_S):
        while supervisor.process is process or not supervisor.lane.is_ready:
            await asyncio.sleep(0.2)
    _, report = await ask(client, temperature=0)
    assert report["lane"] == "ngram"
