"""Two workers that share a port: what all of them keep together, and that none is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import suppress

import aiohttp
import pytest

from e2e.crew import ADMIN, POLICY, USER, crew_over, scripted_crew, seen_by, until_ready
from gateway.world import CHAT, MESSAGES, eventually
from outrider.runtimes.scripted_replies import Fault, Reply, chat_reply
from processes import children_of, is_alive

FAR = "http://127.0.0.1:9"
EVENTS = (("Content-Type", "text/event-stream"),)


def slow(request):
    """A prompt says how fast it is answered: not at all, in a while, or at once."""
    body = request.json()
    text, is_stream = body["messages"][-1]["content"], bool(body.get("stream"))
    if text == "hang":
        return Reply(200, EVENTS, (*chat_reply(stream=True).steps[:3], Fault.HANG))
    return chat_reply(stream=is_stream, delay_s=0.2 if text == "slow" else 0.0)


def body(text="hi", **fields):
    return {"messages": [{"role": "user", "content": text}], **fields}


async def ask(session, headers=ADMIN, **fields):
    async with session.post(CHAT, json={"messages": MESSAGES} | fields, headers=headers) as response:
        await response.read()
        return response.status, response.headers


async def order(session, what):
    async with session.post(f"/outrider/lanes/a/{what}", headers=ADMIN) as response:
        assert response.status == 200


async def page_of(session):
    async with session.get("/metrics") as response:
        return await response.text()


def values(page, name):
    """By worker."""
    return {
        int(number): float(value)
        for number, value in re.findall(rf'^{name}\{{[^}}]*worker="(\d)"[^}}]*\}} (\S+)$', page, re.MULTILINE)
    }


async def test_limits_metrics_runs_and_orders_are_those_of_all_workers(tmp_path):
    """Whichever is asked."""
    async with scripted_crew(tmp_path, slow) as (crew, lane), crew.connected() as sessions:
        await check_limits(sessions)
        await check_metrics(sessions)
        await check_runs(sessions, crew, lane)
        await check_reload(sessions, crew)
        await check_drain(sessions)


async def check_limits(sessions):
    """Six requests a minute are three of each worker, and no more than six of both."""
    found = [await ask(session, USER) for session in sessions for _ in range(5)]
    assert [status for status, _ in found] == 2 * ([200] * 3 + [429] * 2)
    assert {headers["x-ratelimit-limit-requests"] for _, headers in found} == {"3"}


async def check_metrics(sessions):
    """One page has the figures of both, and the parent's."""
    for session in sessions:
        page = await page_of(session)
        answered = values(page, "outrider_lane_attempts_total")
        assert answered == {0: 3.0, 1: 3.0}
        assert values(page, "outrider_worker_up") == {0: 1.0, 1: 1.0}
        assert page.count("# HELP outrider_requests_total ") == 1


async def check_runs(sessions, crew, lane):
    """A run of one worker is shown, followed and cancelled through the other."""
    one, other = sessions
    hidden = {"outrider": {"background": True}}
    async with one.post(CHAT, json=body(stream=True, **hidden), headers=ADMIN) as response:
        assert response.status == 202
        run = (await response.json())["id"]
    async with other.get(f"/outrider/runs/{run}/events", headers=ADMIN) as response:
        events = await response.text()
    assert events.rstrip().endswith("data: [DONE]")
    async with other.get(f"/outrider/runs/{run}", headers=ADMIN) as response:
        assert (await response.json())["status"] == "completed"
    async with one.post(CHAT, json=body("hang", stream=True, **hidden), headers=ADMIN) as response:
        run = (await response.json())["id"]
    events = f"/outrider/runs/{run}/events"
    async with aiohttp.ClientSession(crew.url) as http, http.get(events, headers=ADMIN) as response:
        await response.content.readuntil(b"\n\n")
        async with other.post(f"/outrider/runs/{run}/cancel", headers=ADMIN) as cancelling:
            assert (cancelling.status, (await cancelling.json())["status"]) == (200, "cancelled")
        assert b"run_cancelled" in await response.read()
    await eventually(lambda: len(lane.disconnects) == 1)


async def check_reload(sessions, crew):
    """New policies are in force in both, and a wrong file changes nothing in either."""
    (crew.folder / "policies" / "more.yaml").write_text(POLICY % "more")
    async with sessions[0].post("/outrider/reload", headers=ADMIN) as response:
        assert response.status == 200
    assert [(await seen_by(one))["workloads"] for one in sessions] == 2 * [["default", "more"]]
    (crew.folder / "policies" / "more.yaml").write_text("rulez: 1\n")
    async with sessions[1].post("/outrider/reload", headers=ADMIN) as response:
        assert response.status == 422
    assert [(await seen_by(one))["workloads"] for one in sessions] == 2 * [["default", "more"]]
    (crew.folder / "policies" / "more.yaml").write_text(POLICY % "other")
    crew.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(60):
        while [(await seen_by(one))["workloads"] for one in sessions] != 2 * [["default", "other"]]:
            await asyncio.sleep(0.02)


async def check_drain(sessions):
    """A lane that is spared by one is spared by both."""
    for what, status in (("drain", 503), ("resume", 200)):
        await order(sessions[0], what)
        assert [(await ask(one))[0] for one in sessions] == 2 * [status]


async def test_a_parent_that_hangs_holds_up_no_request_and_no_figures(tmp_path):
    """What needs all workers says that it was not done."""
    async with scripted_crew(tmp_path, slow) as (crew, _), crew.connected() as sessions:
        crew.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                assert (await ask(sessions[0]))[0] == 200
                assert set(values(await page_of(sessions[0]), "outrider_in_flight")) == {0}
                async with sessions[1].post("/outrider/lanes/a/drain", headers=ADMIN) as response:
                    assert response.status == 503 and "the parent does not answer" in await response.text()
        finally:
            crew.process.send_signal(signal.SIGCONT)


async def test_a_worker_that_hangs_is_told_of(tmp_path):
    """Orders that it has not carried out are not said to be; when it goes on it has them."""
    async with scripted_crew(tmp_path, slow) as (crew, _), crew.connected() as sessions:
        hung = max(crew.workers)
        os.kill(hung, signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                other = await first_to_answer(sessions)
                async with other.post("/outrider/lanes/a/drain", headers=ADMIN) as response:
                    assert response.status == 503 and "has not done it" in await response.text()
                assert len(values(await page_of(other), "outrider_in_flight")) == 1
        finally:
            os.kill(hung, signal.SIGCONT)
        async with asyncio.timeout(60), crew.connected() as all_again:
            for one in all_again:
                while [lane["is_draining"] for lane in (await seen_by(one))["lanes"]] != [True]:
                    await asyncio.sleep(0.02)


async def first_to_answer(sessions):
    """Of two, of which one cannot."""

    async def ask_for_life(session):
        async with session.get("/live") as response:
            assert response.status == 200

    asking = {asyncio.create_task(ask_for_life(one)): one for one in sessions}
    (first,), others = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    first.result()
    for one in others:
        one.cancel()
    await asyncio.wait(others)
    return asking[first]


async def test_requests_go_on_when_a_worker_is_killed_and_it_comes_back(tmp_path):
    """With what an operator has said meanwhile; at the end all stop, and a request that runs is finished."""
    async with scripted_crew(tmp_path, slow) as (crew, _):
        async with crew.connected() as sessions:
            await order(sessions[0], "drain")
        victim = max(crew.workers)
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: victim not in children_of(crew.process.pid))
        statuses = []
        for _ in range(20):
            async with aiohttp.ClientSession(crew.url) as session, session.get("/live") as response:
                statuses.append(response.status)
        assert statuses == [200] * 20
        await eventually(lambda: len(crew.workers) == 2)
        async with crew.connected() as sessions:
            assert [[lane["is_draining"] for lane in (await seen_by(one))["lanes"]] for one in sessions] == 2 * [
                [True]
            ]
            page = await page_of(sessions[0])
            assert sum(values(page, "outrider_worker_restarts_total").values()) == 1
            await order(sessions[0], "resume")
            await until_ready(crew)
            await check_stop(crew, sessions)


async def check_stop(crew, sessions):
    """Within the grace a stream ends as if nothing had happened; then no process is left."""
    responses = [await one.post(CHAT, json=body("slow", stream=True), headers=ADMIN) for one in sessions]
    pids = crew.workers
    crew.process.send_signal(signal.SIGTERM)
    for response in responses:
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
    await asyncio.wait_for(crew.process.wait(), 60)
    assert crew.process.returncode == 0
    assert len(pids) == 2 and not any(map(is_alive, pids))


async def test_a_second_signal_ends_all_at_once(tmp_path):
    """The first waits for a stream that would not end within the grace."""
    grace = {"shutdown_grace_s": 120}
    async with scripted_crew(tmp_path, slow, server=grace) as (crew, _), crew.connected() as sessions:
        responses = [await one.post(CHAT, json=body("hang", stream=True), headers=ADMIN) for one in sessions]
        for response in responses:
            await response.content.readuntil(b"\n\n")
        pids = crew.workers
        crew.process.send_signal(signal.SIGTERM)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(crew.process.wait(), 1.5)
        assert all(map(is_alive, pids))
        crew.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(crew.process.wait(), 60)
        assert crew.process.returncode == 0 and not any(map(is_alive, pids))


async def test_workers_share_a_lane_that_the_parent_launches(toy_folder, tmp_path):
    """There is one engine; when it is killed, both find the next one. No process outlives a parent that is killed."""
    lanes = [{"name": "toy", "model": str(toy_folder), "served_model_name": "toy", "max_total_tokens": 4096}]
    async with crew_over(lanes, tmp_path) as crew, crew.connected() as sessions:
        commands = {pid: command_of(pid) for pid in crew.workers}
        (engine,) = [pid for pid, command in commands.items() if "engine" in command]
        assert len(commands) == 3
        assert [(await ask(one, max_tokens=4))[0] for one in sessions] == [200, 200]
        os.kill(engine, signal.SIGKILL)
        await until_failed(sessions)
        await until_ready(crew)
        assert [(await ask(one, max_tokens=4))[0] for one in sessions] == [200, 200]
        pids = crew.workers
        assert len(pids) == 3 and engine not in pids
        crew.process.kill()
        await crew.process.wait()
        await eventually(lambda: not any(map(is_alive, pids)))


async def until_failed(sessions):
    for session in sessions:
        async with asyncio.timeout(60):
            while (await seen_by(session))["lanes"][0]["state"] == "ready":
                await asyncio.sleep(0.02)


def command_of(pid):
    with suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
        return file.read().split("\0")
    return []


async def test_what_is_wrong_for_a_worker_stops_the_start_in_one_line(tmp_path):
    """Although the parent cannot see it; nothing is left running."""
    runs, lanes = {"url": "sqlite+aiosqlite:////nowhere/at/all.sqlite"}, [{"name": "a", "kind": "url", "urls": [FAR]}]
    with pytest.raises(AssertionError, match=r"outrider: runs\.url: /nowhere/at/all\.sqlite") as caught:
        async with crew_over(lanes, tmp_path, runs=runs):
            pass
    assert "Traceback" not in str(caught.value)
