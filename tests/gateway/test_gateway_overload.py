"""Too many requests: what is given up first, who waits, who is refused, and how that is told."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from contextlib import asynccontextmanager, contextmanager, suppress

import aiohttp
import pytest

from gateway.test_gateway_access import auth, bearer
from gateway.world import CHAT, MESSAGES, eventually, world
from outrider.app import serving
from outrider.config import AdmissionSection, Config, ServerSection
from outrider.runtimes.breaker import MAX_FAILURES
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Fault, Reply, chat_reply, error_reply

EVENTS = (("Content-Type", "text/event-stream"),)
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
HANGS = Reply(200, EVENTS, (DELTA, Fault.HANG))
ONE = {"max_in_flight": 1}


@asynccontextmanager
async def full(**limits):
    """A gateway whose only place is taken by a stream that hangs."""
    limits = AdmissionSection(**ONE, **limits)
    async with world(lambda _request: HANGS, admission=limits) as w, w.chat(stream=True) as response:
        await response.content.readuntil(b"\n\n")
        yield w


async def refusal_of(response):
    """Status, what the header tells those who read no bodies, and whether to ask again."""
    error = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["x-outrider-error"] == error["code"]
    assert (error["code"] == "deadline_exceeded") == ("Retry-After" not in response.headers)
    return response.status, error["code"], error["type"], response.headers["x-should-retry"]


async def test_first_k_shrinks_then_speculation_ends_then_requests_queue_then_they_are_refused():
    """The same request, as the lane fills up."""
    async with world(admission=AdmissionSection(**ONE, max_queued=1)) as w:
        asked = {"temperature": 0, "max_tokens": 64, "outrider": {"task": "quote"}}
        ks = []
        for usage in (0.0, 0.9, 0.97):
            w.scripted.load = {"token_usage": usage}
            await eventually(lambda usage=usage: (load := w.lane.load()) is not None and load.token_usage == usage)
            async with w.chat(**asked) as response:
                ks.append(int(response.headers["x-outrider-k"]))
        assert ks[0] > ks[1] > ks[2] == 0
        goes_on = asyncio.Event()
        w.scripted.reply = lambda _request: Reply(200, EVENTS, (DELTA, goes_on, *chat_reply(stream=True).steps))
        async with w.chat(stream=True) as first:
            await first.content.readuntil(b"\n\n")
            waiting = asyncio.create_task(w.chat(stream=True, **asked).__aenter__())
            await eventually(lambda: w.gateway.admission.num_queued == 1)
            async with w.chat(**asked) as response:
                assert (await refusal_of(response))[:2] == (503, "queue_full")
            goes_on.set()
            assert b"[DONE]" in await first.read()
        async with await waiting as response:
            assert response.status == 200 and float(response.headers["x-outrider-queue-ms"]) > 0
            await response.read()


async def test_refusals_of_the_queue_say_why():
    """At once, after waiting too long, by the request's own deadline, and in favour of one that is more urgent."""
    async with full(max_queued=0) as w, w.chat() as response:
        assert await refusal_of(response) == (503, "queue_full", "overloaded_error", "true")
    async with full(queue_timeout_s=0.05) as w, w.chat() as response:
        assert await refusal_of(response) == (408, "queue_timeout", "overloaded_error", "true")
    async with full() as w, w.chat(headers={"x-outrider-deadline-ms": "50"}) as response:
        assert await refusal_of(response) == (504, "deadline_exceeded", "server_error", "false")
    async with full(max_queued=1) as w:
        bulk = asyncio.create_task(w.chat(headers={"x-outrider-priority": "bulk"}).__aenter__())
        await eventually(lambda: w.gateway.admission.num_queued == 1)
        urgent = asyncio.create_task(w.chat(headers={"x-outrider-priority": "interactive"}).__aenter__())
        async with await bulk as response:
            assert await refusal_of(response) == (503, "queue_full", "overloaded_error", "true")
        urgent.cancel()
        await eventually(lambda: not w.gateway.admission.num_queued)


@pytest.mark.parametrize("limits", [{"requests_per_min": 1}, {"tokens_per_min": 1}, {"max_concurrent": 1}])
async def test_every_limit_of_a_key_is_a_429_with_a_time(limits):
    """The second request is one too many, whatever is limited."""
    goes_on = asyncio.Event()
    reply = Reply(200, EVENTS, (DELTA, goes_on, *chat_reply(stream=True).steps))
    making = world(lambda _request: reply, auth=auth(**limits))
    async with making as w, w.chat(stream=True, headers=bearer("secret")) as first:
        await first.content.readuntil(b"\n\n")
        if "max_concurrent" not in limits:
            goes_on.set()
            await first.read()
        async with w.chat(headers=bearer("secret")) as response:
            expected = (429, "rate_limit_exceeded", "rate_limit_error", "true")
            assert await refusal_of(response) == expected
            assert int(response.headers["Retry-After"]) >= 1
        goes_on.set()
        await first.read()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_lane_that_is_full_says_so_by_a_code(status):
    """SGLang gives its status for a code, or none."""
    async with world(lambda _request: error_reply(status, headers=[("Retry-After", "2")])) as w, w.chat() as response:
        assert await refusal_of(response) == (status, "lane_busy", "overloaded_error", "true")


@contextmanager
def few_files():
    """What is given takes all files that this process may open, as too many clients do."""
    held = []

    def take_all():
        with suppress(OSError):
            while True:
                held.append(os.dup(0))

    first = os.dup(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first + 8, hard))
    try:
        yield take_all
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in (first, *held):
            os.close(one)


async def test_want_of_connections_of_our_own_is_no_fault_of_a_lane():
    """Neither its breaker nor its state changes by it: the next request is answered as soon as there are some."""
    async with world() as w:
        async with w.chat() as response:
            await response.read()
        with few_files() as take_all:
            ends_s, num = time.monotonic() + 2.0, 0  # four polls of the lane
            while num < MAX_FAILURES + 1 or time.monotonic() < ends_s:
                w.gateway.client.connections.close()
                await asyncio.sleep(0.02)
                take_all()
                async with w.chat() as response:
                    if response.status != 200:
                        num += 1
                        assert await refusal_of(response) == (503, "lane_unavailable", "server_error", "true")
            assert (w.lane.is_ready, w.lane.breaker.num_failures) == (True, 0)
            assert await w.metric('outrider_aborts_sent_total{result="failed"}') == 0
        async with w.chat() as response:
            assert response.status == 200


async def test_a_model_whose_lanes_hang_takes_no_place_of_another():
    """Places and queue are of the lanes of one model; the gauges count all."""
    config = Config(server=ServerSection(port=0, shutdown_grace_s=0), admission=AdmissionSection(**ONE, max_queued=0))
    async with (
        ScriptedLane(lambda _request: HANGS, model="one") as one,
        ScriptedLane(model="two") as two,
        aiohttp.ClientSession() as http,
    ):
        lanes = [Lane("one", one.url), Lane("two", two.url)]
        async with serving(config, lanes=lanes) as gateway:
            for lane in lanes:
                await asyncio.wait_for(lane.wait_until_ready(), 60)

            def ask(model):
                return http.post(gateway.url + CHAT, json={"model": model, "messages": MESSAGES, "stream": True})

            async with ask("one") as hanging:
                await hanging.content.readuntil(b"\n\n")
                async with ask("one") as response:
                    assert (await refusal_of(response))[:2] == (503, "queue_full")
                async with ask("two") as response:
                    assert response.status == 200 and b"[DONE]" in await response.read()
                assert (gateway.admission.num_in_flight, gateway.admission.num_queued) == (1, 0)
            await eventually(lambda: not gateway.admission.num_in_flight)
