"""A run against a scripted lane: conversations, interleaving, coordinated omission, stopping and going on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Recorded, Reply, chat_reply, default_reply, error_reply, event
from outrider.workloads.arrivals import Bursts, Closed
from outrider.workloads.bench import Bench, Side, Stated, result_of
from outrider.workloads.ledger import LEDGER, Head, Ledger
from outrider.workloads.results import Arm, Result, Slo, read_result, write_result
from outrider.workloads.suite import Job, JobTool, Suite
from outrider.workloads.target import Target, opened
from paced_lane import pace, reply

TOOL = JobTool(name="add", description="Adds.", parameters={"type": "object"}, answer="49204")


def job(name: str = "one", text: str = "Say yes.", **fields: Any) -> Job:
    made = {"name": name, "task": "chat", "temperature": 0.0, "max_tokens": 8, "text": text}
    return Job(**(made | fields))


def suite(*jobs: Job, **fields: Any) -> Suite:
    return Suite(**({"name": "s", "jobs": list(jobs) or [job()], "rounds": 1} | fields))


@asynccontextmanager
async def lane_and_target(
    answer: Callable[[Recorded], Reply] = default_reply,
) -> AsyncIterator[tuple[ScriptedLane, Target]]:
    async with ScriptedLane(answer) as lane, opened(lane.url) as target:
        lane.requests.clear()
        yield lane, target


async def run(asked: Suite, target: Target, folder: Path, *arms: str, slo: Slo | None = None) -> Result:
    sides = [Side(Arm(name=arm, target=target.url), target) for arm in arms or ("a",)]
    head = Head(suite=asked.name, digest=asked.digest, arms=tuple(side.arm for side in sides))
    with Ledger(folder, head) as ledger:
        await Bench(asked, ledger, lambda what, share: None).run(sides)
    return result_of(asked, ledger, Stated({"machine": "test"}, slo))


def bodies(lane: ScriptedLane) -> list[dict[str, Any]]:
    """Of the requests that were measured."""
    return [body for one in lane.requests if (body := one.json())["max_tokens"] > 1]


async def test_arms_take_turns_and_each_round_begins_with_another(tmp_path: Path) -> None:
    """All are asked the same with the same seed; prompts were read once before."""
    async with lane_and_target() as (lane, target):
        result = await run(suite(job("one"), job("two", "Say no."), rounds=2), target, tmp_path, "a", "b")
        sent = bodies(lane)
        assert len(lane.requests) - len(sent) == 2
    assert [(one.arm, one.round, one.prompt) for one in result.records] == [
        (arm, number, name) for number, arms in enumerate(("ab", "ba")) for arm in arms for name in ("one", "two")
    ]
    assert sent[:2] == sent[2:4] and sent[4:6] == sent[6:]
    assert len({body["seed"] for body in sent}) == 4
    assert result.is_complete and not any(one.error for one in result.records)
    assert [(one.arm, one.round, one.num_requests) for one in result.stretches] == [
        ("a", 0, 2), ("b", 0, 2), ("b", 1, 2), ("a", 1, 2),
    ]  # fmt: skip
    assert result.against[0].num_same_text == 4


async def test_a_tool_loop_goes_on_until_the_model_speaks(tmp_path: Path) -> None:
    """The tool's answer, then the user's next words; an unknown tool is told so; each answer is a record."""

    def answer(request: Recorded) -> Reply:
        messages = request.json()["messages"]
        name = {1: "add", 3: "divide"}.get(len(messages))
        if name is None:
            return chat_reply(["Done."], stream=True, include_usage=True)
        call = {"index": 0, "id": f"c{len(messages)}", "function": {"name": name, "arguments": "{}"}}
        chunk = event({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]})
        return Reply(200, (("Content-Type", "text/event-stream"),), (chunk, b"data: [DONE]\n\n"))

    asked = suite(job(tools=(TOOL,), tool_choice="required", then=("And now?",), prediction="Yes.", max_turns=9))
    async with lane_and_target(answer) as (lane, target):
        result = await run(asked, target, tmp_path)
        sent = bodies(lane)
    assert [one.turn for one in result.records] == [0, 1, 2, 3]
    assert [body["tool_choice"] for body in sent] == ["required", "auto", "auto", "auto"]
    assert ["prediction" in body for body in sent] == [True, False, False, False]
    assert [message["role"] for message in sent[-1]["messages"]] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    told = [message for message in sent[-1]["messages"] if message["role"] == "tool"]
    assert [message["content"] for message in told] == ["49204", "error: there is no such tool"]
    assert [message["tool_call_id"] for message in told] == ["c1", "c3"]
    assert result.records[0].finish_reason == "tool_calls" and '"add"' in result.records[0].text


async def test_a_model_that_never_stops_calling_is_stopped(tmp_path: Path) -> None:
    """At the job's limit of turns; a failed answer ends a conversation too."""
    call = {"index": 0, "id": "c", "function": {"name": "add", "arguments": "{}"}}
    chunk = event({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    looping = Reply(200, (("Content-Type", "text/event-stream"),), (chunk, b"data: [DONE]\n\n"))
    async with lane_and_target(lambda _request: looping) as (lane, target):
        assert len((await run(suite(job(tools=(TOOL,), max_turns=3)), target, tmp_path / "a")).records) == 3
        lane.reply = lambda _request: error_reply(500)
        result = await run(suite(job(then=("More.",))), target, tmp_path / "b")
    assert [(one.turn, one.error) for one in result.records] == [(0, "500: scripted error")]
    assert result.notes == ["failed: 500: scripted error"]


async def test_a_late_send_counts_from_the_intended_moment(tmp_path: Path) -> None:
    """A burst is due at once: what waits for the loop has waited, and is not flattered."""
    asked = suite(job("p", pace(60, 20, 3)), arrivals=Bursts(kind="bursts", size=2, every_s=1.0), requests=4)

    def answer(request: Recorded) -> Reply:
        body = request.json()
        if body["max_tokens"] > 1 and body["seed"] == 0:  # the first one: the loop is held when the next burst is due
            asyncio.get_running_loop().call_soon(time.sleep, 1.3)
        return reply(request)

    async with lane_and_target(answer) as (_, target):
        result = await run(asked, target, tmp_path)
    late = [one for one in result.records if one.number >= 2]
    assert all(one.intended_s == pytest.approx(1.0, abs=0.001) for one in late)
    waited = [1000 * (one.steps[0].at_s - one.sent_s) for one in late]
    told = [1000 * (one.steps[0].at_s - one.intended_s) for one in late]
    assert all(ttft > wait + 100 for ttft, wait in zip(told, waited, strict=True))
    assert result.generator.is_bottleneck
    assert any("late" in why for why in result.generator.reasons)


async def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """What was done is kept, jobs that were open are asked again, and the result says when it is complete."""
    jobs = [job(str(i), pace(10, 10, 2) + f" number {i}") for i in range(3)] + [job("slow", pace(30_000, 1, 1))]
    asked = suite(*jobs, arrivals=Closed(concurrency=4))
    arm = Arm(name="a", target="t")
    head = Head(suite="s", digest=asked.digest, arms=(arm,))
    async with lane_and_target(reply) as (lane, target):
        with Ledger(tmp_path, head) as ledger:
            running = asyncio.create_task(Bench(asked, ledger, lambda what, share: None).run([Side(arm, target)]))
            while len(ledger.records) < 3:
                await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.wait([running])
        partial = result_of(asked, ledger, Stated({}))
        assert not partial.is_complete and partial.cells[0].num_requests == 3
        assert "1 jobs are missing" in partial.notes[0] and len(partial.stretches) == 1
        lane.requests.clear()
        lane.reply = default_reply
        with Ledger(tmp_path, head) as ledger:
            assert len(ledger.records) == 3
            await Bench(asked, ledger, lambda what, share: None).run([Side(arm, target)])
        assert len(bodies(lane)) == 1
    whole = result_of(asked, ledger, Stated({}))
    assert whole.is_complete and sorted(one.number for one in whole.records) == [0, 1, 2, 3]
    assert len(whole.stretches) == 2


async def test_a_line_that_was_cut_off_is_asked_again(tmp_path: Path) -> None:
    """As a kill leaves it; a line that is wrong in the middle is named."""
    async with lane_and_target() as (_, target):
        await run(suite(job("one"), job("two", "Say no.")), target, tmp_path)
        file = tmp_path / LEDGER
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(lines[:2]) + lines[2][:40])
        result = await run(suite(job("one"), job("two", "Say no.")), target, tmp_path)
        assert sorted(one.prompt for one in result.records) == ["one", "two"]
        file.write_bytes(lines[0] + b'{"job": 3}\n' + lines[1])
        with pytest.raises(ConfigError, match=rf"{LEDGER}:2: "):
            await run(suite(job("one"), job("two", "Say no.")), target, tmp_path)


async def test_another_run_is_not_mixed_into_a_folder(tmp_path: Path) -> None:
    """What differs is named; more rounds of the same run are added to it."""
    async with lane_and_target() as (_, target):
        await run(suite(), target, tmp_path, "a")
        with pytest.raises(ConfigError, match=r"arms a at .* instead of b at"):
            await run(suite(), target, tmp_path, "b")
        with pytest.raises(ConfigError, match="digest"):
            await run(suite(job(text="Other.")), target, tmp_path, "a")
        assert len((await run(suite(rounds=3), target, tmp_path, "a")).records) == 3


async def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    """From its folder; what is no result is an error with its file."""
    async with lane_and_target() as (_, target):
        result = await run(suite(), target, tmp_path, slo=Slo(ttft_ms=5000))
    assert read_result(write_result(result, tmp_path).parent) == result
    assert result.cells[0].share_within_slo.value == 1.0 and result.stretches[0].good_per_s > 0
    (tmp_path / "result.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(ConfigError, match=r"result.json: format: "):
        read_result(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_result(tmp_path / "none.json")


async def test_a_target_that_refuses_running_counts_is_asked_without() -> None:
    """And that none is there, or no model, is said before any load."""

    def strict(request: Recorded) -> Reply:
        if "continuous_usage_stats" in request.json()["stream_options"]:
            return error_reply(400, "flat", "unknown field")
        return chat_reply(["Yes"], stream=True, include_usage=True)

    async with lane_and_target(strict) as (lane, target):
        assert (target.counts_tokens, target.is_outrider, target.model) == (False, False, "scripted")
        lane.reply = lambda _request: error_reply(500, "flat", "broken")
        with pytest.raises(ConfigError, match="one token failed: 500: broken"):
            async with opened(lane.url):
                pass
        url = lane.url
    with pytest.raises(ConfigError, match="no list of models"):
        async with opened(url):
            pass
    with pytest.raises(ConfigError, match="http or https"):
        async with opened("localhost:8000"):
            pass
