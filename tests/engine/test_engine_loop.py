"""The engine's thread: outputs arrive in order, leaving aborts, faults end requests and not the engine."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

import pytest

from outrider.engine.engine import Engine, EngineLimits, Output
from outrider.engine.loop import EngineLoop
from outrider.engine.sequence import Finish, GenerateRequest
from outrider.errors import InvalidRequest, ModelError
from outrider.policy.plan import Plan
from outrider.speculation.target import SamplingLaw


def request(rid: str, tokens: int = 20) -> GenerateRequest:
    return GenerateRequest(rid, (0, 1, 2, 3, 0, 1), SamplingLaw(1.0), tokens, Plan("ngram", 3), seed=1)


@pytest.fixture
async def loop(toy_folder: Path):
    engine_loop = await EngineLoop.start(lambda: Engine(toy_folder, EngineLimits(max_running=4, context_length=1024)))
    yield engine_loop
    await engine_loop.stop()
    assert not engine_loop.is_alive


async def until_idle(loop: EngineLoop) -> None:
    async with asyncio.timeout(60):
        while loop.load.num_running or loop.load.num_waiting:
            await asyncio.sleep(0.005)


async def test_outputs_arrive_and_end_once(loop: EngineLoop) -> None:
    """A request's outputs add up to its tokens, and the last one alone has the finish."""
    async with loop.generate(request("a")) as stream:
        outputs = [await stream.get()]
        while outputs[-1].finish is None:
            outputs.append(await stream.get())
    assert sum(len(o.token_ids) for o in outputs) == 20
    assert [o.finish is not None for o in outputs] == [False] * (len(outputs) - 1) + [True]
    await until_idle(loop)


async def test_leaving_early_frees_the_slot(loop: EngineLoop) -> None:
    """A listener that goes away takes its request with it."""
    async with loop.generate(request("a", tokens=900)) as stream:
        await stream.get()
    await until_idle(loop)
    assert loop.num_streams == 0
    assert loop.load.num_used_tokens == 0


async def test_a_duplicate_id_is_refused_while_the_first_lives(loop: EngineLoop) -> None:
    """Two requests of one id could not be told apart; afterwards the id is free again."""
    async with loop.generate(request("a", tokens=900)):
        with pytest.raises(InvalidRequest, match="duplicate"):
            async with loop.generate(request("a")):
                pass
    async with loop.generate(request("a", tokens=3)) as stream:
        while (await stream.get()).finish is None:
            pass


async def test_a_reused_id_gets_nothing_of_the_request_before(loop: EngineLoop) -> None:
    """Tokens and abort of the one that left were on their way: they do not reach the next of the same id."""

    async def answer(of: GenerateRequest) -> tuple[tuple[int, ...], Finish | None]:
        async with loop.generate(of) as stream:
            output = await stream.get()
            while output.finish is None:
                output = output.merged(await stream.get())
        return output.token_ids, output.finish

    second = dataclasses.replace(request("a", tokens=5), seed=2)
    expected = await answer(second)
    for _ in range(10):
        async with loop.generate(request("a", tokens=900)) as stream:
            await stream.get()
        assert await answer(second) == expected
    assert expected[1] == Finish("length")


async def test_a_deadline_is_told_though_the_step_fails(toy_folder: Path) -> None:
    """A request that expires just before a fault ends with its own status, and not without any."""
    late = dataclasses.replace(request("late"), deadline_s=time.monotonic())
    broken = dataclasses.replace(request("bad"), prompt_ids=(63, 10**6))
    ended: dict[str, Finish | None] = {}

    def engine_with_both() -> Engine:
        engine = Engine(toy_folder, EngineLimits())
        engine.add(late)
        engine.add(broken)
        return engine

    def note(output: Output) -> None:
        ended[output.rid] = output.finish

    engine_loop = await EngineLoop.start(engine_with_both, note)
    async with asyncio.timeout(60):
        while "bad" not in ended:
            await asyncio.sleep(0.005)
    await engine_loop.stop()
    assert {rid: finish and finish.status for rid, finish in ended.items()} == {"late": 408, "bad": 500}


async def test_a_fault_in_a_step_ends_the_requests_of_that_step(loop: EngineLoop) -> None:
    """A drafter-side or tensor fault becomes a typed end, and the next request runs."""
    broken = GenerateRequest("bad", (63, 10**6), SamplingLaw(1.0), 5, Plan("ngram", 1), seed=1)
    async with loop.generate(broken) as stream:
        finish = (await stream.get()).finish
        assert finish is not None and (finish.kind, finish.status) == ("abort", 500)
    async with loop.generate(request("good", tokens=3)) as stream:
        while (last := await stream.get()).finish is None:
            pass
        assert last.finish is not None and last.finish.kind == "length"
    await until_idle(loop)


async def test_stopping_tells_who_is_still_there(toy_folder: Path) -> None:
    """A shutdown ends running requests with a status, not with silence."""
    engine_loop = await EngineLoop.start(lambda: Engine(toy_folder, EngineLimits()))
    async with engine_loop.generate(request("a", tokens=1900)) as stream:
        await stream.get()
        await engine_loop.stop()
        outputs = []
        while not outputs or outputs[-1].finish is None:
            outputs.append(await asyncio.wait_for(stream.get(), 60))
    assert outputs[-1].finish == Finish("abort", message="the engine is shutting down", status=503)


async def test_a_model_that_cannot_be_loaded_is_an_error_of_the_start(tmp_path: Path) -> None:
    """What is wrong with the folder comes out of the start, not of the first request."""
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        await EngineLoop.start(lambda: Engine(tmp_path, EngineLimits()))
