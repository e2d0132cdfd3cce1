"""Durable runs over real HTTP and a real file: what is delivered, to whom, and what faults make of it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sqlite3
import sys
from contextlib import asynccontextmanager
from hashlib import sha256

import aiohttp
import pytest

from gateway.world import CHAT, MESSAGES, eventually, world
from outrider.app import serving
from outrider.config import AdmissionSection, AuthSection, Config, KeySection, RunsSection, ServerSection
from outrider.errors import ConfigError
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import SENTENCE, Fault, Reply, chat_reply, error_reply
from outrider.sse import SSEDecoder
from runs.databases import full_disk, locked, unlock

TEXT = "".join(SENTENCE)
RUNS = "/outrider/runs/"
EVENTS = (("Content-Type", "text/event-stream"),)
BACKGROUND = {"outrider": {"background": True}}


def section(folder, **options):
    given = {"url": f"sqlite+aiosqlite:///{folder}/runs.sqlite", "lease_s": 0.4, "timeout_s": 0.5}
    return RunsSection(**(given | options))


def hang_after(num):
    """So many pieces of the sentence, then silence."""
    steps = chat_reply(stream=True).steps
    return Reply(200, EVENTS, (*steps[: num + 1], Fault.HANG))


def paced(delay_s=0.004):
    return lambda request: chat_reply(stream=bool(request.json().get("stream")), delay_s=delay_s)


async def start(w, stream=True, **fields):
    """Begin a run; its id."""
    headers = fields.pop("headers", None)
    async with w.chat(headers=headers, stream=stream, **BACKGROUND, **fields) as response:
        body = await response.json()
        assert response.status == 202, body
        assert response.headers["Location"] == RUNS + body["id"]
        return body["id"]


async def show(w, run, headers=None):
    async with w.http.get(w.gateway.url + RUNS + run, headers=headers) as response:
        return await response.json() | {"http": response.status}


async def read_events(w, run, after=0, most=None):
    """(number, data) of what comes behind `after`; leaves the connection after `most` events."""
    events, decoder = [], SSEDecoder()
    headers = {"Last-Event-ID": str(after)} if after else {}
    async with w.http.get(f"{w.gateway.url}{RUNS}{run}/events", headers=headers) as response:
        if response.status == 204:
            return events
        assert response.status == 200
        async for piece in response.content.iter_any():
            for event in decoder.feed(piece):
                if event.data is not None:
                    number = re.match(rb"id: (\d+)\n", event.raw)
                    events.append((int(number[1]), event.data))
            if most is not None and len(events) >= most:
                response.close()
                return events[:most]
    return events


def text_of(events):
    chunks = [json.loads(data) for _, data in events if data.startswith(b"{")]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))


def error_of(events):
    return json.loads(events[-1][1])["error"]


async def test_a_run_is_accepted_followed_and_shown(tmp_path):
    """202 with an id; the events are those of a stream, numbered; the report is in the last one."""
    async with world(runs=section(tmp_path)) as w:
        run = await start(w, outrider_unknown=1)
        events = await read_events(w, run)
        shown = await show(w, run)
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    assert text_of(events) == TEXT and events[-1][1] == b"[DONE]"
    assert json.loads(events[-2][1])["outrider"]["requested"] == {"background": True}
    assert (shown["status"], shown["num_events"], shown["answer"], shown["error"]) == (
        "completed", len(events), None, None,
    )  # fmt: skip
    assert "outrider" not in w.upstream.json()


async def test_a_run_without_a_stream_shows_its_whole_answer(tmp_path):
    """And gives it as its one event."""
    async with world(runs=section(tmp_path)) as w:
        run = await start(w, stream=False)
        ((number, data),) = await read_events(w, run)
        shown = await show(w, run)
    assert number == 1 and json.loads(data) == shown["answer"]
    assert shown["answer"]["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages", "/generate"])
async def test_every_route_that_generates_can_run_in_the_background(tmp_path, path):
    """Its events end as the route's do."""
    bodies = {
        "/v1/completions": {"prompt": "x"}, "/v1/responses": {"input": "x"}, "/generate": {"text": "x"},
        "/v1/messages": {"messages": MESSAGES, "max_tokens": 3},
    }  # fmt: skip
    ends = {"/v1/responses": b"response.completed", "/v1/messages": b"message_stop"}
    async with world(runs=section(tmp_path)) as w:
        async with w.post(bodies[path] | {"stream": True} | BACKGROUND, path) as response:
            run = (await response.json())["id"]
        events = await read_events(w, run)
        status = (await show(w, run))["status"]
    if path == "/generate":  # not scripted
        assert (status, error_of(events)["message"]) == ("failed", "/generate is not scripted")
    else:
        assert status == "completed" and ends.get(path, b"[DONE]") in events[-1][1]


async def test_clients_that_leave_anywhere_lose_and_repeat_nothing(tmp_path):
    """Eight runs at once, each followed by clients that break off at random places and resume by number."""
    async with world(paced(), runs=section(tmp_path, timeout_s=10.0)) as w:
        runs = [await start(w) for _ in range(8)]

        async def follow(run, seed):
            rng, got = random.Random(seed), []
            while not got or got[-1][1] != b"[DONE]":
                got += await read_events(w, run, got[-1][0] if got else 0, rng.randint(1, 4))
            return got

        followed = await asyncio.gather(*(follow(run, seed) for seed in range(3) for run in runs))
        for events, run in zip(followed, runs * 3, strict=True):
            assert [number for number, _ in events] == list(range(1, len(events) + 1)), run
            assert events == await read_events(w, run)
            assert text_of(events) == TEXT
        assert await read_events(w, runs[0], len(followed[0])) == []  # 204: there will be none
        await eventually(lambda: w.scripted.num_open <= 1)
    assert {outcome.status for _, outcome in w.outcomes} == {200}


async def test_a_cancelled_run_tells_the_lane_and_says_so(tmp_path):
    """Its last event is the error; what came before stands; a second time changes nothing."""
    async with world(lambda _request: hang_after(3), runs=section(tmp_path)) as w:
        run = await start(w)
        before = await read_events(w, run, most=4)
        async with w.http.post(f"{w.gateway.url}{RUNS}{run}/cancel") as response:
            assert (await response.json())["status"] == "cancelled"
        assert await eventually(lambda: w.scripted.aborted) < 1
        events = await read_events(w, run)
        async with w.http.post(f"{w.gateway.url}{RUNS}{run}/cancel") as response:
            assert (await response.json())["num_events"] == 5
        async with w.http.delete(w.gateway.url + RUNS + run) as response:
            assert (await response.json())["deleted"] is True
        assert (await show(w, run))["http"] == 404
    assert events[:4] == before and error_of(events)["code"] == "run_cancelled"


async def test_a_failing_lane_fails_the_run_typed(tmp_path):
    """Before its first event and after it; the error is in the run and is its last event."""
    good = chat_reply(stream=True)
    broken = Reply(200, good.headers, (*good.steps[:3], 0.05, Fault.CLOSE))
    replies = iter((error_reply(503, message="full"), broken))
    async with world(lambda _request: next(replies), runs=section(tmp_path)) as w:
        for num_events, status in ((1, 503), (4, 502)):
            run = await start(w)
            events = await read_events(w, run)
            shown = await show(w, run)
            assert (shown["status"], len(events)) == ("failed", num_events)
            assert error_of(events) == shown["error"]
            await eventually(lambda status=status: w.outcomes and w.outcomes[-1][1].status == status)


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [({"model": "other"}, 404, "model_not_found"), ({"temperature": 9}, 400, "invalid_request"),
     ({"bootstrap_host": "x"}, 400, "invalid_request")],
)  # fmt: skip
async def test_what_a_request_is_refused_for_a_run_is_refused_for_at_once(tmp_path, fields, status, code):
    """With the same error; nothing is kept of it."""
    async with world(runs=section(tmp_path)) as w:
        async with w.chat(**BACKGROUND, **fields) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (status, code)
        with sqlite3.connect(tmp_path / "runs.sqlite") as db:
            assert db.execute("SELECT count(*) FROM outrider_runs").fetchone() == (0,)
        db.close()


async def test_runs_count_in_admission_and_have_their_own_limit(tmp_path):
    """A place is a place: the next request waits or is refused, a run too."""
    admission = AdmissionSection(max_in_flight=1, max_queued=1)
    async with world(lambda _request: hang_after(1), runs=section(tmp_path, max_open=3), admission=admission) as w:
        first = await start(w)
        await read_events(w, first, most=1)
        second = await start(w)
        assert (await show(w, second))["status"] == "queued"
        for _ in range(2):
            async with w.chat(**BACKGROUND) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (503, "queue_full")
        async with w.chat() as response:
            assert (await response.json())["error"]["code"] == "queue_full"
        for run in (second, first):
            async with w.http.post(f"{w.gateway.url}{RUNS}{run}/cancel") as response:
                assert (await response.json())["status"] == "cancelled"
        await eventually(lambda: w.gateway.admission.num_in_flight == 0)


async def test_runs_are_listed_newest_first(tmp_path):
    """A tenant's own, page by page; an administrator's key lists all. Bad pages name what is wrong."""
    keys = tuple(
        KeySection(name=name, sha256=sha256(name.encode()).hexdigest(), tenant=tenant, is_admin=tenant is None)
        for name, tenant in (("a", "a"), ("b", "b"), ("admin", None))
    )

    async def page(w, key, query=""):
        url = w.gateway.url + "/outrider/runs" + query
        async with w.http.get(url, headers={"Authorization": f"Bearer {key}"}) as response:
            return await response.json()

    async with world(auth=AuthSection(keys=keys), runs=section(tmp_path)) as w:
        made = [await start(w, headers={"Authorization": f"Bearer {key}"}) for key in "aabaa"]
        own = [run for run, key in zip(made, "aabaa", strict=True) if key == "a"][::-1]
        whole = await page(w, "a")
        assert [one["id"] for one in whole["data"]] == own and whole["has_more"] is False
        assert {one["object"] for one in whole["data"]} == {"outrider.run"}
        first = await page(w, "a", "?limit=3")
        assert [one["id"] for one in first["data"]] == own[:3] and first["has_more"] is True
        second = await page(w, "a", f"?limit=3&after={own[2]}")
        assert [one["id"] for one in second["data"]] == own[3:] and second["has_more"] is False
        assert [one["id"] for one in (await page(w, "admin"))["data"]] == made[::-1]
        for query, param in (("?limit=0", "limit"), ("?limit=x", "limit"), (f"?after={made[2]}", "after")):
            assert (await page(w, "a", query))["error"]["param"] == param


async def test_a_run_is_seen_by_its_tenant_and_by_administrators(tmp_path):
    """By nobody else, in any of the routes: it does not exist for them. Secrets are not stored."""
    keys = [("a1", "a", False), ("a2", "a", False), ("b", "b", False), ("admin", None, True)]
    auth = AuthSection(keys=tuple(
        KeySection(name=name, sha256=sha256(name.encode()).hexdigest(), tenant=tenant, is_admin=is_admin)
        for name, tenant, is_admin in keys
    ))  # fmt: skip
    async with world(runs=section(tmp_path), auth=auth) as w:
        bearer = {name: {"Authorization": f"Bearer {name}"} for name, _, _ in keys}
        run = await start(w, headers=bearer["a1"] | {"x-my-token": "hunter2"})
        for name, status in (("a1", 200), ("a2", 200), ("b", 404), ("admin", 200)):
            assert (await show(w, run, bearer[name]))["http"] == status
        for method, path in (("GET", "/events"), ("POST", "/cancel"), ("DELETE", "")):
            async with w.http.request(method, w.gateway.url + RUNS + run + path, headers=bearer["b"]) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (404, "run_not_found")
        async with w.http.get(w.gateway.url + RUNS + run) as response:
            assert response.status == 401
        async with w.http.get(w.gateway.url + RUNS + run, headers={"x-api-key": "a1"}) as response:
            assert response.status == 200
    assert b"hunter2" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("given", ["x", "-1", "99", "9" * 40])
async def test_a_place_that_is_not_in_the_run_is_refused(tmp_path, given):
    """By the header's name, rather than answered from elsewhere."""
    async with world(runs=section(tmp_path)) as w:
        run = await start(w)
        await read_events(w, run)
        async with w.http.get(f"{w.gateway.url}{RUNS}{run}/events", headers={"Last-Event-ID": given}) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, "last-event-id")


async def test_a_gateway_that_is_stopped_fails_what_had_begun_and_leaves_the_rest(tmp_path):
    """The next one on the same file runs what had waited, once; what had begun says why it ended."""
    admission = AdmissionSection(max_in_flight=1)
    async with world(lambda _request: hang_after(3), runs=section(tmp_path), admission=admission) as w:
        begun, waiting = await start(w), await start(w, headers={"x-outrider-priority": "bulk"})
        seen = await read_events(w, begun, most=4)
    async with world(runs=section(tmp_path)) as w:
        events = await read_events(w, begun)
        assert events[:4] == seen and error_of(events)["code"] == "gateway_stopped"
        assert (await show(w, begun))["status"] == "failed"
        resumed = await read_events(w, waiting)
        assert text_of(resumed) == TEXT and (await show(w, waiting))["status"] == "completed"
        assert len([one for one in w.scripted.requests if one.path == CHAT]) == 1
        assert w.outcomes[0][0].claim.priority == "bulk"


async def test_a_gateway_that_is_to_stop_begins_no_run_more(tmp_path):
    """Though a place becomes free while it waits for what has begun, which is completed: the next one does it."""
    admission = AdmissionSection(max_in_flight=1)
    slow = Reply(200, EVENTS, (0.4, *chat_reply(stream=True).steps))
    server = {"shutdown_grace_s": 5.0}
    async with world(lambda _request: slow, runs=section(tmp_path), admission=admission, server=server) as w:
        begun, waiting = await start(w), await start(w)
        await eventually(lambda: w.scripted.requests)
        scripted = w.scripted
    assert len([one for one in scripted.requests if one.path == CHAT]) == 1
    async with world(runs=section(tmp_path)) as w:
        assert text_of(await read_events(w, begun)) == TEXT
        assert (await show(w, begun))["status"] == "completed"
        assert text_of(await read_events(w, waiting)) == TEXT


async def test_random_stops_lose_and_repeat_nothing(tmp_path):
    """Four lives of the gateway on one file: every run ends once, and all readers of it agree."""
    rng, seen = random.Random(7), {}
    for life in range(4):
        admission, server = AdmissionSection(max_in_flight=2), {"shutdown_grace_s": 0}
        async with world(
            paced(0.01), runs=section(tmp_path, timeout_s=10.0), admission=admission, server=server
        ) as w:
            for _ in range(3 if life < 3 else 0):
                seen[await start(w)] = []

            async def look(run, most, w=w):
                after = seen[run][-1][0] if seen[run] else 0
                seen[run] += await read_events(w, run, after, most)

            if life < 3:
                looks = [asyncio.create_task(look(run, rng.randint(1, 9))) for run in seen]
                await asyncio.sleep(rng.uniform(0.02, 0.15))
                for task in looks:
                    task.cancel()
                await asyncio.gather(*looks, return_exceptions=True)
            else:
                await asyncio.gather(*(look(run, None) for run in seen))
                shown = [await show(w, run) for run in seen]
    for (run, events), one in zip(seen.items(), shown, strict=True):
        assert [number for number, _ in events] == list(range(1, len(events) + 1)), run
        assert len(events) == one["num_events"]
        if one["status"] == "completed":
            assert text_of(events) == TEXT
        else:
            assert (one["status"], error_of(events)["code"]) == ("failed", "gateway_stopped")
            assert TEXT.startswith(text_of(events[:-1]))
    assert {one["status"] for one in shown} == {"completed", "failed"}


CHILD = """
import asyncio, sys
from outrider.app import serving
from outrider.config import AdmissionSection, Config, RunsSection, ServerSection
from outrider.runtimes.lane import Lane

async def main():
    config = Config(server=ServerSection(port=0), runs=RunsSection(url=sys.argv[1], lease_s=0.4),
                    admission=AdmissionSection(max_in_flight=1))
    async with serving(config, lanes=[lane := Lane("scripted", sys.argv[2])]) as gateway:
        await lane.wait_until_ready()
        print(gateway.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_gateway_s_runs_are_taken_up(tmp_path):
    """By the next one, once the lease is over: failed where tokens had come, run where none had."""
    url = section(tmp_path).url
    async with ScriptedLane(lambda _request: hang_after(3)) as scripted:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, url, scripted.url, stdout=asyncio.subprocess.PIPE
        )
        try:
            gateway = (await child.stdout.readline()).decode().strip()
            async with aiohttp.ClientSession() as http:
                ids = []
                for _ in range(2):
                    body = {"messages": MESSAGES, "stream": True, **BACKGROUND}
                    async with http.post(gateway + CHAT, json=body) as response:
                        ids.append((await response.json())["id"])
                async with http.get(f"{gateway}{RUNS}{ids[0]}/events") as response:
                    await response.content.readany()
        finally:
            os.kill(child.pid, signal.SIGKILL)
            await child.communicate()
    async with world(runs=section(tmp_path)) as w:
        failed, resumed = [await read_events(w, run) for run in ids]
        assert error_of(failed)["code"] == "gateway_stopped" and len(failed) > 1
        assert text_of(resumed) == TEXT
        assert [(await show(w, run))["status"] for run in ids] == ["failed", "completed"]


@asynccontextmanager
async def two_gateways(folder, reply):
    """Two gateways on one store and one lane: their URLs and a session."""
    config = Config(server=ServerSection(port=0, shutdown_grace_s=0), runs=section(folder))
    async with ScriptedLane(reply) as scripted, aiohttp.ClientSession() as http:
        lanes = [Lane(str(i), scripted.url) for i in range(2)]
        async with serving(config, lanes=lanes[:1]) as one, serving(config, lanes=lanes[1:]) as two:
            for lane in lanes:
                await lane.wait_until_ready()
            yield one.url, two.url, http


async def test_any_gateway_on_the_store_shows_follows_and_cancels(tmp_path):
    """What runs in another one, which is told."""
    async with two_gateways(tmp_path, lambda _request: hang_after(2)) as (one, two, http):
        body = {"messages": MESSAGES, "stream": True, **BACKGROUND}
        async with http.post(one + CHAT, json=body) as response:
            run = (await response.json())["id"]
        async with http.get(f"{two}{RUNS}{run}/events") as response:
            first = await response.content.readany()
            async with http.post(f"{two}{RUNS}{run}/cancel") as cancel:
                assert cancel.status == 200
            rest = await response.read()
        assert b"id: 1\n" in first and b"run_cancelled" in rest
        async with http.get(one + RUNS + run) as response:
            assert (await response.json())["status"] == "cancelled"


async def is_at_lane(http, gateway):
    async with http.get(gateway + "/metrics") as page:
        return "\noutrider_in_flight 1.0\n" in await page.text()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_run_of_another_gateway_ends_before_it_is_forgotten(tmp_path, stream):
    """Its lane is told, and its readers, and the request that deletes it returns when that is done."""
    async with two_gateways(tmp_path, lambda _request: hang_after(2)) as (one, two, http):
        body = {"messages": MESSAGES, "stream": stream, **BACKGROUND}
        async with http.post(one + CHAT, json=body) as response:
            run = (await response.json())["id"]
        async with http.get(f"{one}{RUNS}{run}/events") as response:
            reading = asyncio.create_task(response.read())
            while not await is_at_lane(http, one):
                await asyncio.sleep(0.01)
            async with http.delete(two + RUNS + run) as deleted:
                assert deleted.status == 200
            assert not await is_at_lane(http, one)
            assert b"run_cancelled" in await reading
        async with http.get(two + RUNS + run) as response:
            assert response.status == 404


async def test_a_locked_store_refuses_a_run_in_time(tmp_path):
    """503 with a typed code; requests without a store go on; nothing of the refused run is left."""
    async with world(runs=section(tmp_path)) as w:
        db = await locked(tmp_path)
        async with asyncio.timeout(5):
            async with w.chat(**BACKGROUND) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (503, "store_unavailable")
            async with w.chat() as response:
                assert response.status == 200
        db.execute("ROLLBACK")
        await asyncio.sleep(0.3)  # beats go on
        assert db.execute("SELECT count(*) FROM outrider_runs").fetchone() == (0,)
        db.close()


async def test_a_full_disk_fails_the_run_and_is_told_at_once(tmp_path):
    """The lane is told, the run shows why, and its end is stored when there is room again."""
    big = chat_reply(["x" * 9000] * 40, stream=True, delay_s=0.01)
    async with world(lambda _request: big, runs=section(tmp_path)) as w:
        run = await start(w)
        await read_events(w, run, most=3)
        with full_disk():
            await eventually(lambda: w.outcomes)
            async with asyncio.timeout(5):
                while (shown := await show(w, run))["status"] == "in_progress":
                    await asyncio.sleep(0.01)
            assert (shown["status"], shown["error"]["code"]) == ("failed", "store_unavailable")
            events = await read_events(w, run)
            assert error_of(events)["code"] == "store_unavailable"
        assert len(w.scripted.aborted) == 1
        with sqlite3.connect(tmp_path / "runs.sqlite") as db:
            query = "SELECT status FROM outrider_runs"
            await eventually(lambda: db.execute(query).fetchone() == ("failed",))
        db.close()
        assert await read_events(w, run) == events


async def test_a_store_that_cannot_be_used_is_told_and_does_not_stop_requests(tmp_path):
    """In `/ready`, which stays 200, and in the metrics, until it can be used again."""

    async def told(w):
        async with w.http.get(w.gateway.url + "/ready") as response:
            assert response.status == 200
            return (await response.json())["runs"], await w.metric("outrider_runs_healthy")

    async with world(lambda _request: hang_after(1), runs=section(tmp_path)) as w:
        run = await start(w)
        await read_events(w, run, most=1)
        assert await told(w) == ("ok", 1.0)
        assert await w.metric("outrider_runs_open") == 1.0
        db = await locked(tmp_path)
        async with asyncio.timeout(5):
            while await told(w) != ("store unavailable", 0.0):
                await asyncio.sleep(0.01)
            async with w.http.post(f"{w.gateway.url}{RUNS}{run}/cancel") as response:
                assert response.status == 200
            assert await w.metric("outrider_runs_unsaved") == 1.0
            unlock(db)
            while await told(w) != ("ok", 1.0) or await w.metric("outrider_runs_unsaved"):
                await asyncio.sleep(0.01)
    async with world() as w:
        assert await told(w) == ("not kept", 0.0)


async def test_runs_expire(tmp_path):
    """After their end; an id that has expired is a 404."""
    async with world(runs=section(tmp_path, keep_s=0.3)) as w:
        run = await start(w)
        await read_events(w, run)
        assert (await show(w, run))["http"] == 200
        await asyncio.sleep(0.6)
        assert (await show(w, run))["http"] == 404
        with sqlite3.connect(tmp_path / "runs.sqlite") as db:
            await eventually(lambda: db.execute("SELECT count(*) FROM outrider_run_events").fetchone() == (0,))
        db.close()


async def test_a_run_waits_for_a_lane_that_is_away(tmp_path):
    """One that was accepted is not lost when its turn comes at a bad time; its deadline ends the waiting."""
    admission = AdmissionSection(max_in_flight=1, queue_timeout_s=0.1)
    async with world(lambda _request: hang_after(1), runs=section(tmp_path), admission=admission) as w:
        first = await start(w)
        second, third = await start(w), await start(w, headers={"x-outrider-deadline-ms": "250"})
        await read_events(w, first, most=1)
        await asyncio.sleep(0.4)  # longer than anybody may queue
        assert (await show(w, second))["status"] == "queued"
        assert error_of(await read_events(w, third))["code"] == "deadline_exceeded"
        w.scripted.reply = paced()
        async with w.http.post(f"{w.gateway.url}{RUNS}{first}/cancel") as response:
            assert response.status == 200
        assert text_of(await read_events(w, second)) == TEXT


async def test_a_key_that_is_gone_fails_its_runs(tmp_path):
    """A run that waited is read again by the keys that are in force."""
    key = KeySection(name="a", sha256=sha256(b"a").hexdigest())
    bearer = {"Authorization": "Bearer a"}
    admission = AdmissionSection(max_in_flight=1)
    auth = AuthSection(keys=(key,))
    async with world(lambda _request: hang_after(1), runs=section(tmp_path), auth=auth, admission=admission) as w:
        await start(w, headers=bearer)
        waiting = await start(w, headers=bearer)
    admin = AuthSection(keys=(KeySection(name="b", sha256=sha256(b"b").hexdigest(), is_admin=True),))
    async with world(runs=section(tmp_path), auth=admin) as w:
        headers = {"Authorization": "Bearer b"}
        while (shown := await show(w, waiting, headers))["status"] == "queued":
            await asyncio.sleep(0.01)
    assert (shown["status"], shown["error"]["code"]) == ("failed", "invalid_api_key")


async def test_prompts_are_not_logged(tmp_path, caplog):
    """At any level."""
    caplog.set_level("DEBUG")
    async with world(runs=section(tmp_path)) as w:
        run = await start(w, messages=[{"role": "user", "content": "my very private question"}])
        await read_events(w, run)
    assert "private" not in caplog.text


async def test_without_a_store_nothing_is_promised(tmp_path):
    """A run is refused by name, and there are none to be found; a store that cannot be used stops the start."""
    async with world() as w:
        async with w.chat(**BACKGROUND) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, "outrider.background")
        assert (await show(w, "run_x"))["http"] == 404
    (tmp_path / "runs.sqlite").write_bytes(b"not a database" * 99)
    with pytest.raises(ConfigError, match=r"runs\.url"):
        async with world(runs=section(tmp_path)):
            pass
