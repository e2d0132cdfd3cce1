"""Keys, administrators, limits, priorities, deadlines and internal fields, over HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from hashlib import sha256

import orjson
import pytest

from gateway.world import CHAT, MESSAGES, eventually, world
from outrider.config import AdmissionSection, AuthSection, KeySection, PolicySection
from outrider.gateway.access import INTERNAL_FIELDS
from outrider.runtimes.scripted_replies import Fault, Reply

EVENTS = (("Content-Type", "text/event-stream"),)
LIVE = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


def auth(**fields):
    digest = sha256(b"secret").hexdigest()
    return AuthSection(keys=(KeySection(name="alice", sha256=digest, **fields),))


async def error_of(response):
    body = await response.json()
    return response.status, body["error"]["code"], body["error"]["param"]


async def test_without_keys_everybody_may_ask_and_nobody_administers():
    """The default for one's own machine."""
    async with world() as w:
        async with w.chat() as response:
            assert response.status == 200
        async with w.http.post(w.gateway.url + "/outrider/reload") as response:
            assert await error_of(response) == (403, "forbidden", None)


@pytest.mark.parametrize(
    "headers", [{}, bearer("other"), {"Authorization": "Basic secret"}, bearer(""), bearer("\udce4")]
)
async def test_a_wrong_key_is_refused_everywhere_but_for_probes(headers):
    """Before the body is looked at; the lane hears nothing."""
    async with world(auth=auth()) as w:
        async with w.post(b"{", headers=headers) as response:
            assert await error_of(response) == (401, "invalid_api_key", None)
        async with w.http.get(w.gateway.url + "/v1/models", headers=headers) as response:
            assert response.status == 401
        for path in ("/live", "/ready", "/health", "/metrics"):
            async with w.http.get(w.gateway.url + path) as response:
                assert response.status == 200
        assert not any(one.path == CHAT for one in w.scripted.requests)


async def test_limits_are_told_in_headers_and_refused_with_a_time():
    """Every answer says what is left; the one too many is a 429 that says when."""
    async with world(auth=auth(requests_per_min=1)) as w:
        async with w.chat(headers=bearer("secret")) as response:
            assert response.status == 200
            assert response.headers["x-ratelimit-remaining-requests"] == "0"
        async with w.chat(headers=bearer("secret")) as response:
            assert await error_of(response) == (429, "rate_limit_exceeded", None)
            assert 1 <= int(response.headers["Retry-After"]) <= 60
            assert response.headers["x-ratelimit-limit-requests"] == "1"
        assert [outcome.status for _, outcome in w.outcomes] == [200, 429]
        assert {outcome.tenant for _, outcome in w.outcomes} == {"alice"}


async def test_tokens_of_a_stream_without_usage_are_charged():
    """By its events: a stream is not free because nobody asked for a count."""
    async with world(auth=auth(tokens_per_min=10)) as w:
        async with w.chat(headers=bearer("secret"), stream=True) as response:
            await response.read()
        async with w.chat(headers=bearer("secret")) as response:
            assert response.status == 429


async def test_internal_fields_are_refused_by_name_unless_the_key_allows_them():
    """A null is no use of the field."""
    allowing, all_set = world(auth=auth(allowed_fields=tuple(INTERNAL_FIELDS))), dict.fromkeys(INTERNAL_FIELDS, 1)
    async with allowing as w, w.chat(headers=bearer("secret"), **all_set) as response:
        assert response.status == 200
    async with world() as w:
        for name in INTERNAL_FIELDS:
            async with w.chat(**{name: 1}) as response:
                assert await error_of(response) == (400, "invalid_request", name)
        async with w.chat(**dict.fromkeys(INTERNAL_FIELDS)) as response:
            assert response.status == 200


async def test_priorities_are_checked_against_the_key():
    """Unknown ones and those above the key's are refused."""
    async with world(auth=auth(priority="bulk")) as w:
        for priority, status in (("bulk", 200), ("interactive", 403), ("urgent", 400)):
            async with w.chat(headers=bearer("secret") | {"x-outrider-priority": priority}) as response:
                assert response.status == status
        async with w.chat(headers=bearer("secret")) as response:
            assert response.status == 200


@pytest.mark.parametrize("path", [CHAT, "/generate"])
async def test_the_body_is_no_way_past_a_keys_priority(path):
    """SGLang would take the number as its own queue's order."""
    async with world(auth=auth(priority="bulk")) as w:
        body = {"messages": MESSAGES, "text": "hello", "priority": 1000}
        async with w.post(body, path, headers=bearer("secret")) as response:
            assert await error_of(response) == (400, "invalid_request", "priority")


@pytest.mark.parametrize("given", ["0", "-1", "soon", "1.5", "", "9" * 5000])
async def test_a_deadline_that_is_none_is_refused(given):
    """With the header's name."""
    async with world() as w, w.chat(headers={"x-outrider-deadline-ms": given}) as response:
        assert await error_of(response) == (400, "invalid_request", "x-outrider-deadline-ms")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_deadline_ends_a_silent_request_and_tells_the_lane(is_stream):
    """The lane knows what is left, and is aborted when it is over."""
    async with world(lambda _request: Reply(200, EVENTS, (Fault.HANG,))) as w:
        began_s = time.monotonic()
        async with w.chat(headers={"x-outrider-deadline-ms": "1000"}, stream=is_stream) as response:
            assert await error_of(response) == (504, "deadline_exceeded", None)
        assert time.monotonic() - began_s > 0.9
        assert 0 < int(w.upstream.headers["x-outrider-deadline-ms"]) <= 1000
        await eventually(lambda: w.scripted.aborted)
        assert w.gateway.admission.num_in_flight == 0


async def test_a_deadline_in_the_middle_of_a_stream_is_its_last_event():
    """The configured limit holds for requests that bring none."""
    limits = AdmissionSection(request_timeout_s=1.0)
    async with world(lambda _request: Reply(200, EVENTS, (DELTA, Fault.HANG)), admission=limits) as w:
        async with w.chat(stream=True) as response:
            got = await response.read()
        assert got.startswith(DELTA) and b'"code":"deadline_exceeded"' in got
        assert [outcome.status for _, outcome in w.outcomes] == [504]


async def test_a_deadline_passes_in_the_queue():
    """Nothing is sent for a request whose time is over."""
    limits = AdmissionSection(max_in_flight=1)
    async with world(lambda _request: Reply(200, EVENTS, (DELTA, Fault.HANG)), admission=limits) as w:
        first = await w.chat(stream=True)
        await first.content.readuntil(b"\n\n")
        async with w.chat(headers={"x-outrider-deadline-ms": "100"}) as response:
            assert await error_of(response) == (504, "deadline_exceeded", None)
        assert sum(one.path == CHAT for one in w.scripted.requests) == 1
        first.close()


async def test_a_body_that_does_not_arrive_is_given_up():
    """A slow sender holds nothing for long."""

    async def slow():
        yield b'{"messages":'
        await asyncio.Event().wait()

    async with world(server={"body_timeout_s": 0.2}) as w:
        headers = {"Content-Type": "application/json"}
        async with w.http.post(w.gateway.url + CHAT, data=slow(), headers=headers) as response:
            assert await error_of(response) == (408, "request_timeout", None)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat", b"GET /health HTTP/1.1\r\nHost: x\r\n", LIVE + b"GET /li"])
async def test_a_connection_without_a_whole_head_is_closed(sent):
    """Before the first request and after one; what streams is not idle."""
    steps = [DELTA, *[0.1, b": still here\n\n"] * 6, b"data: [DONE]\n\n"]
    async with world(lambda _request: Reply(200, EVENTS, steps), server={"idle_timeout_s": 0.3}) as w:
        asked = asyncio.create_task(_stream(w))
        url = w.gateway.url.removeprefix("http://").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(url[0], int(url[1]))
        writer.write(sent)
        async with asyncio.timeout(30):
            got = await reader.read()
        assert got.startswith(b"HTTP/1.1 200 OK") == sent.startswith(LIVE)
        assert (await asked).endswith(b"[DONE]\n\n")
        writer.close()


async def _stream(w):
    async with w.chat(stream=True) as response:
        return await response.read()


async def test_an_administrator_reloads_keys_and_a_wrong_file_changes_nothing(tmp_path):
    """The new key works at once; the last good ones stay, and both are counted."""
    file = tmp_path / "keys.yaml"

    def write(*names):
        keys = [
            {"name": name, "sha256": sha256(name.encode()).hexdigest(), "is_admin": name == "root"} for name in names
        ]
        file.write_bytes(orjson.dumps(keys))

    write("root")
    async with world(auth=AuthSection(keys_file=file)) as w:
        reload = lambda: w.http.post(w.gateway.url + "/outrider/reload", headers=bearer("root"))  # noqa: E731
        write("root", "new")
        async with w.chat(headers=bearer("new")) as response:
            assert response.status == 401
        async with reload() as response:
            assert response.status == 200 and (await response.json())["policies"]["hash"]
        async with w.http.post(w.gateway.url + "/outrider/reload", headers=bearer("new")) as response:
            assert response.status == 403
        file.write_text("- {name: new, key: hunter2}\n")
        async with reload() as response:
            assert response.headers["x-outrider-error"] == "reload_refused"
            problem = (await response.json())["error"]["message"]
            assert response.status == 422 and str(file) in problem and "hunter2" not in problem
        async with w.chat(headers=bearer("new")) as response:
            assert response.status == 200
        assert await w.metric('outrider_reloads_total{result="applied"}') == 1
        assert await w.metric('outrider_reloads_total{result="refused"}') == 1


async def test_a_file_whose_keys_are_all_gone_opens_nothing(tmp_path):
    """From the beginning or by a reload: nobody may ask, rather than everybody."""
    file = tmp_path / "keys.yaml"
    file.write_bytes(orjson.dumps([{"name": "root", "sha256": sha256(b"root").hexdigest(), "is_admin": True}]))
    async with world(auth=AuthSection(keys_file=file)) as w:
        file.write_text("[]")
        async with w.http.post(w.gateway.url + "/outrider/reload", headers=bearer("root")) as response:
            assert response.status == 200
        for headers in ({}, bearer("root")):
            async with w.chat(headers=headers) as response:
                assert await error_of(response) == (401, "invalid_api_key", None)
    async with world(auth=AuthSection(keys_file=file)) as w, w.chat() as response:
        assert response.status == 401


async def test_policies_are_read_again_and_administrators_see_which(tmp_path):
    """The hash changes with good files; with a wrong one it stays, and what is wrong is said."""
    file = tmp_path / "default.yaml"
    file.write_text("version: 1\nworkload: default\ndrafters: {}\n")
    async with world(auth=auth(is_admin=True), policy=PolicySection(directories=(tmp_path,))) as w:

        async def policies():
            async with w.http.post(w.gateway.url + "/outrider/reload", headers=bearer("secret")) as response:
                assert response.status in (200, 422)
            async with w.http.get(w.gateway.url + "/outrider/lanes", headers=bearer("secret")) as response:
                found = await response.json()
            async with w.http.get(w.gateway.url + "/ready") as response:
                assert (await response.json())["policies"] == {"hash": found["policies"]["hash"]}
            assert (found["workloads"], found["lanes"][0]["name"]) == (["default"], "scripted")
            return found["policies"]

        first = await policies()
        file.write_text("version: 1\nworkload: default\ndrafters: {ngram: {max_k: 3}}\n")
        second = await policies()
        assert first["hash"] != second["hash"] and second["problem"] is None
        file.write_text("version: 1\nworkload: default\ndrafters: {ngrm: {max_k: 3}}\n")
        third = await policies()
        assert third["hash"] == second["hash"] and f"{file}:3:12" in third["problem"]


async def test_a_workload_may_be_for_a_header(tmp_path):
    """By the headers that the client sent, in whatever case."""
    (tmp_path / "default.yaml").write_text("version: 1\nworkload: default\ndrafters: {}\n")
    gold = "version: 1\nworkload: gold\nmatch: {headers: {X-Tier: gold}}\ndrafters: {}\n"
    (tmp_path / "gold.yaml").write_text(gold)
    async with world(policy=PolicySection(directories=(tmp_path,))) as w:
        for headers, workload in (({"x-TIER": "gold"}, "gold"), ({}, "default")):
            async with w.chat(headers=headers) as response:
                assert response.headers["x-outrider-workload"] == workload


async def test_the_access_log_has_one_object_per_request_without_secrets(caplog):
    """Names, numbers and the plan; neither the key nor the prompt."""
    with caplog.at_level(logging.INFO, "outrider.access"):
        async with world(auth=auth(tenant="team")) as w:
            async with w.chat(headers=bearer("secret") | {"x-request-id": "r-1"}) as response:
                await response.read()
            async with w.chat(headers=bearer("stolen")) as response:
                assert response.status == 401
    lines = [orjson.loads(one.message) for one in caplog.records if one.name == "outrider.access"]
    assert (lines[0]["request_id"], lines[0]["status"], lines[0]["route"]) == ("r-1", 200, CHAT)
    assert (lines[0]["key"], lines[0]["tenant"], lines[0]["lane"]) == ("alice", "team", "scripted")
    assert (lines[1]["status"], lines[1]["key"]) == (401, None)
    for secret in ("secret", "stolen", MESSAGES[0]["content"]):
        assert secret not in caplog.text


async def test_a_lane_sees_the_tenant_s_own_salt():
    """What keeps cached texts apart is not the client's word alone; the rest of the body is."""
    async with world(auth=auth(tenant="acme")) as w:
        async with w.chat(headers=bearer("secret"), cache_salt="s") as response:
            assert response.status == 200
        sent = w.upstream.json()
    assert "acme" in sent["cache_salt"] and sent["cache_salt"] != "s" and sent["messages"] == MESSAGES
