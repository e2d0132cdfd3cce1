"""Durable runs over real HTTP and a real file: what is delivered, to whom, and what is refused."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from hashlib import sha256

import pytest

from gateway.runs_world import (
    BACKGROUND,
    RUNS,
    TEXT,
    error_of,
    hang_after,
    paced,
    read_events,
    section,
    show,
    start,
    text_of,
)
from gateway.world import MESSAGES, SOON, eventually, world
from outrider.config import AdmissionSection, AuthSection, KeySection
from outrider.runtimes.scripted_replies import Fault, Reply, chat_reply, error_reply


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
    async with world(paced(), runs=section(tmp_path)) as w:
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
        assert await eventually(lambda: w.scripted.aborted) < SOON
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


async def test_prompts_are_not_logged(tmp_path, caplog):
    """At any level."""
    caplog.set_level("DEBUG")
    async with world(runs=section(tmp_path)) as w:
        run = await start(w, messages=[{"role": "user", "content": "my very private question"}])
        await read_events(w, run)
    assert "private" not in caplog.text
