"""Several choices of one request: they start after the first has read the prompt, and end with the request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outrider.engine.choices import choice_id, generating
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.loop import EngineLoop
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.policy.plan import PLAN_OFF
from outrider.speculation.target import SamplingLaw

ABORTED = Finish("abort", message="the request was aborted", status=499)


@pytest.fixture
async def loop(toy_folder: Path):
    engine_loop = await EngineLoop.start(lambda: Engine(toy_folder, EngineLimits(max_prefill_rows=8)))
    yield engine_loop
    await engine_loop.stop()


@pytest.mark.parametrize("is_after_first_output", [False, True])
async def test_an_abort_of_the_first_is_one_of_all(loop: EngineLoop, is_after_first_output: bool) -> None:
    """Aborted before the others have started, while the prompt is read or just after: they end and never start."""
    request = GenerateRequest("many", tuple(range(40)), SamplingLaw(1.0), 1500, PLAN_OFF, 1)
    finishes: dict[int, Finish | None] = {}
    async with generating(loop, request, 4) as choices, asyncio.timeout(60):
        while is_after_first_output and not loop.load.tokens_per_s:
            await asyncio.sleep(0.002)
        for index in range(4):
            loop.abort(choice_id("many", index), ABORTED)
        while set(finishes) < set(range(4)) or None in finishes.values():
            finishes |= {index: output.finish for index, output in await choices.next()}
        assert loop.num_streams == 1
    assert finishes == dict.fromkeys(range(4), ABORTED)
