"""The gateway over two real SGLang servers on a CPU: one that only decodes, one that drafts n-grams."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import openai
import pytest

from not_run import not_run
from outrider.app import Gateway, serving
from outrider.config import load_config
from outrider.runtimes import sglang_env

pytestmark = [pytest.mark.sglang, pytest.mark.model, pytest.mark.timeout(900)]

CONFIG = Path(__file__).parents[2] / "configs" / "sglang-cpu.yaml"
QUOTE = [
    {"role": "user", "content": "Quote this text back: The water will be turned off on Thursday until noon."},
]
READY_S = 400.0


@pytest.fixture(scope="module", autouse=True)
def _environment() -> None:
    if not sglang_env.is_ready():
        not_run("real SGLang lanes, whose environment is not there; build it with: make sglang-env")


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
    """Quoting goes to the n-grams, `off` and penalties to the plain lane; one that is killed comes back.

    What it has begun to tell fails typed, what it has not is told by the other lane.
    `min_p` stays on the lane that drafts, since our plugin honours it there exactly; where a lane has no plugin it
    goes to the plain one, which a test of the gateway over scripted lanes shows.
    """
    async with (
        running() as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0, timeout=300) as client,
    ):
        await _each_goes_to_its_lane(client)
        await _the_other_routes_too(gateway)
        await _a_killed_lane_comes_back(gateway, client)


async def _each_goes_to_its_lane(client: openai.AsyncOpenAI) -> None:
    text, report = await ask(client, temperature=0)
    assert (report["lane"], report["effective"]["drafter"]) == ("ngram", "ngram")
    assert 5 <= report["effective"]["k"] <= 7  # the lane's most
    assert report["observed"]["num_accepted"] > 0
    plain, report = await ask(client, temperature=0, extra_body={"outrider": {"off": True}})
    assert (report["lane"], report["effective"], report["observed"]) == ("plain", {"drafter": "off", "k": 0}, None)
    assert plain == text
    _, report = await ask(client, temperature=0, extra_body={"outrider": {"k": 2}})
    assert (report["lane"], report["effective"]["k"]) == ("ngram", 2)
    assert not any(report["observed"]["accepted_histogram"][3:])
    _, report = await ask(client, temperature=0.8, extra_body={"min_p": 0.1, "seed": 4, "outrider": {"k": 3}})
    assert (report["lane"], report["effective"]) == ("ngram", {"drafter": "ngram", "k": 3})
    _, report = await ask(client, temperature=0.8, presence_penalty=0.5, extra_body={"outrider": {"k": 3}})
    assert report["lane"] == "plain"
    assert any("do not honour all of the sampling" in reason for reason in report["reasons"])


async def _the_other_routes_too(gateway: Gateway) -> None:
    """Each runs what its lane was launched with, and `off` finds the lane that only decodes."""
    model, said = "smollm2-135m-instruct", {"temperature": 0}
    bodies = {
        "/v1/responses": {"model": model, "input": "Say yes.", "max_output_tokens": 8, **said},
        "/v1/messages": {"model": model, "messages": QUOTE, "max_tokens": 8, **said},
    }
    async with aiohttp.ClientSession(gateway.url) as session:
        for path, body in bodies.items():
            for hints, lane, k in (({"off": True}, "plain", 0), ({"drafter": "ngram", "k": 2}, "ngram", 7)):
                async with session.post(path, json=body | {"outrider": hints}) as response:
                    answer = await response.json()
                    assert response.status == 200, answer
                report = answer["outrider"]
                assert (report["lane"], report["effective"]["k"]) == (lane, k)
            async with session.post(path, json=body | {"stream": True}) as response:
                assert '"outrider":' in (await response.text()).strip().split("\n")[-1]
        params = {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True}
        body = {"text": "one two three one two three one", "sampling_params": params}
        async with session.post("/generate", json=body | {"outrider": {"k": 2}}) as response:
            report = (await response.json())["outrider"]
        assert (report["lane"], report["effective"]["k"]) == ("ngram", 2)
        assert sum(report["observed"]["accepted_histogram"]) == report["observed"]["num_verify_steps"]


async def _a_killed_lane_comes_back(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    supervisor = next(one for one in gateway.supervisors if one.lane.name == "ngram")
    long = {"temperature": 0, "extra_body": {"ignore_eos": True}}
    stream = await client.chat.completions.create(
        model="smollm2-135m-instruct", messages=QUOTE, max_tokens=900, stream=True, **long
    )
    await anext(aiter(stream))
    whole = asyncio.create_task(ask(client, max_tokens=300, **long))
    while supervisor.lane.num_in_flight < 2:
        await asyncio.sleep(0.05)
    process = supervisor.process
    assert process is not None
    os.killpg(process.pid, signal.SIGKILL)
    with pytest.raises(openai.APIError) as failed:
        async for _ in stream:
            pass
    assert failed.value.code == "lane_failed"
    async with asyncio.timeout(60):
        while supervisor.lane.is_ready:
            await asyncio.sleep(0.01)
    _, report = await ask(client, temperature=0)
    assert (report["lane"], report["effective"]["drafter"]) == ("plain", "off")
    _, report = await whole  # of which nothing had been delivered
    assert report["lane"] == "plain" and any("lane plain was asked" in reason for reason in report["reasons"])
    async with asyncio.timeout(READY_S):
        while supervisor.process is process or not supervisor.lane.is_ready:
            await asyncio.sleep(0.2)
    _, report = await ask(client, temperature=0)
    assert report["lane"] == "ngram"


CONFIG_OF_ONE = """
server: {{port: 0}}
lanes:
  - name: plain
    kind: sglang
    device: cpu
    model: {model}
    max_running: 2
    max_total_tokens: 2048
    flags: [--skip-tokenizer-init, --mem-fraction-static, "0.9"]
"""
#: The guard's grace for the server, and some for the machine.
GONE_S = 20.0


async def test_a_killed_gateway_leaves_no_process_of_its_lanes(toy_folder: Path, tmp_path: Path) -> None:
    """SIGKILL leaves the gateway no time to stop anything: the guard of the lane's process notices and does it."""
    config = tmp_path / "one.yaml"
    config.write_text(CONFIG_OF_ONE.format(model=toy_folder))
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outrider", "serve", "--config", str(config),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        url = await _address(gateway)
        async with aiohttp.ClientSession(url) as session, asyncio.timeout(READY_S):
            while not await _is_ready(session):
                await asyncio.sleep(0.5)
        tree = _descendants(gateway.pid)
        assert len(tree) >= 4  # the guard, the server, its scheduler and its detokenizer
    finally:
        gateway.kill()
        await gateway.wait()
    async with asyncio.timeout(GONE_S):
        while any(map(_lives, tree)):
            await asyncio.sleep(0.1)


async def _address(gateway: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(60):
        async for line in gateway.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line.decode()):
                return found[0]
    raise AssertionError("the gateway ended")


async def _is_ready(session: aiohttp.ClientSession) -> bool:
    async with session.get("/ready") as response:
        return response.status == 200


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _lives(pid: int) -> bool:
    """A process that has ended and that nobody waited for is still listed."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
