"""Requests that are sent again, breakers, drained lanes and homes of conversations: over two scripted lanes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256

import aiohttp
import orjson
import pytest

from gateway.world import CHAT, SOON, eventually
from outrider.app import Gateway, serving
from outrider.config import AdmissionSection, AuthSection, Config, KeySection, PolicySection, ServerSection
from outrider.core import LaneLoad, Outcome
from outrider.runtimes.breaker import MAX_FAILURES
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Fault, Reply, chat_reply, error_reply

EVENTS = (("Content-Type", "text/event-stream"),)
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
BROKEN = b'data: {"error":{"message":"broken","code":500}}\n\n'


@dataclass
class Two:
    """A gateway over lanes whose replies are set by the test."""

    gateway: Gateway
    http: aiohttp.ClientSession
    scripted: list[ScriptedLane]
    outcomes: list[Outcome] = field(default_factory=list)

    def post(self, messages=("hello",), **fields):
        """Contents of messages, of user and assistant in turn."""
        roles = ["user", "assistant"] * len(messages)
        said = [{"role": role, "content": text} for role, text in zip(roles, messages, strict=False)]
        headers = fields.pop("headers", {})
        return self.http.post(self.gateway.url + CHAT, json={"messages": said, **fields}, headers=headers)

    async def lane_of(self, *messages):
        async with self.post(messages) as response:
            assert response.status == 200
            await response.read()
            return response.headers["x-outrider-lane"]

    async def metric(self, line):
        async with self.http.get(self.gateway.url + "/metrics") as response:
            page = await response.text()
        found = [one.rpartition(" ")[2] for one in page.splitlines() if one.rpartition(" ")[0] == line]
        return float(found[0]) if found else 0.0

    def rids(self):
        """Of all generations, by lane."""
        return [
            [orjson.loads(one.body)["rid"] for one in lane.requests if one.path == CHAT] for lane in self.scripted
        ]


@asynccontextmanager
async def lanes(*replies, **limits):
    """One lane for each reply; None answers well. `policy` is a section of the configuration."""
    policy = limits.pop("policy", PolicySection())
    outcomes = []
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as http:
        scripted = [ScriptedLane(None if reply is None else (lambda _, reply=reply: reply)) for reply in replies]
        for one in scripted:
            await one.__aenter__()
        made = [Lane(f"lane{i}", one.url) for i, one in enumerate(scripted)]
        admin = KeySection(name="admin", sha256=sha256(b"secret").hexdigest(), is_admin=True)
        auth = AuthSection(keys=(admin,))
        server, admission = ServerSection(port=0), AdmissionSection(**limits)
        config = Config(server=server, admission=admission, auth=auth, policy=policy)
        try:
            async with serving(config, lanes=made, on_outcome=lambda _, outcome: outcomes.append(outcome)) as gateway:
                async with asyncio.timeout(60):
                    await asyncio.gather(*(lane.wait_until_ready() for lane in made))
                yield Two(gateway, http, scripted, outcomes)
                await eventually(lambda: not gateway.dispatcher.num_open)
                assert [lane.num_in_flight for lane in made] == [0] * len(made)
                assert gateway.admission.num_in_flight == 0
        finally:
            for one in scripted:
                await one.__aexit__(None, None, None)


FAILURES = {
    "closed": Reply(steps=(Fault.CLOSE,)),
    "reset": Reply(steps=(0.002, Fault.RESET)),
    "garbage": Reply(steps=(Fault.GARBAGE,)),
    "head only": Reply(200, EVENTS, (b"", Fault.CLOSE)),
    "error event": Reply(200, EVENTS, (BROKEN,)),
    "error behind text": Reply(200, EVENTS, (DELTA + BROKEN,)),
    "429": error_reply(429),
    "503": error_reply(503),
    "500": error_reply(500),
}


@pytest.mark.parametrize("fault", FAILURES)
async def test_another_lane_answers_what_one_failed_to_before_a_byte(fault):
    """With an id of its own; the client sees one good answer, the report says why, and it counts as one request."""
    async with lanes(FAILURES[fault], chat_reply(stream=True)) as two, two.post(stream=True) as response:
        text = await response.text()
        assert (response.status, response.headers["x-outrider-lane"]) == (200, "lane1")
        assert text.count("[DONE]") == 1 and "before anything was delivered, so lane lane1 was asked" in text
        ids = [rid for of_lane in two.rids() for rid in of_lane]
        assert len(set(ids)) == len(ids) >= 2 and all(len(rid) == 32 for rid in ids)
        await eventually(lambda: two.outcomes)
        assert [(one.status, one.error_code) for one in two.outcomes] == [(200, None)]
        assert set(two.outcomes[0].phases) == {"admit", "plan", "retry", "prefill", "decode"}
        assert await two.metric('outrider_lane_attempts_total{lane="lane1",result="answered"}') == 1
        assert await two.metric("outrider_total_seconds_count") == 1


@pytest.mark.parametrize(
    ("reply", "status"), [(error_reply(400), 400), (Reply(200, EVENTS, (DELTA, 0.05, Fault.CLOSE)), 200)]
)
async def test_nothing_is_sent_again_that_cannot_be(reply, status):
    """What is wrong with the request, and what had begun."""
    async with lanes(reply, None) as two, two.post(stream=True) as response:
        assert response.status == status
        await response.read()
        assert [len(ids) for ids in two.rids()] == [1, 0]


async def test_no_attempt_begins_after_the_deadline_or_for_a_client_that_left():
    """A lane that hangs is left, and no other is asked."""
    async with lanes(Reply(steps=(Fault.HANG,)), None) as two:
        async with two.post(headers={"x-outrider-deadline-ms": "1000"}) as response:
            assert response.status == 504
        asking = asyncio.create_task(two.post().__aenter__())
        await eventually(lambda: len(two.rids()[0]) == 2)
        asking.cancel()
        await eventually(lambda: len(two.outcomes) == 2)
        assert [one.status for one in two.outcomes] == [504, 499]
        assert [len(ids) for ids in two.rids()] == [2, 0]


async def test_a_client_that_leaves_a_second_attempt_ends_it():
    """The lane that works on it is told by its id, the other one is not asked again."""
    async with lanes(error_reply(500), Reply(steps=(Fault.HANG,))) as two:
        asking = asyncio.create_task(two.post().__aenter__())
        await eventually(lambda: two.rids()[1])
        asking.cancel()
        lane = two.scripted[1]
        assert await eventually(lambda: lane.disconnects and lane.aborted) < SOON
        await eventually(lambda: two.outcomes)
        assert (lane.aborted, len(two.rids()[0])) == (two.rids()[1], 1)
        assert [(one.status, one.error_code) for one in two.outcomes] == [(499, "client_left")]
        assert await two.metric('outrider_lane_attempts_total{lane="lane1",result="left"}') == 1


async def test_attempts_are_bounded():
    """Once more by default, never with none allowed; the last error is the answer."""
    broken = error_reply(500)
    for limits, num in (({}, 2), ({"max_retries": 0}, 1), ({"max_retries": 2}, 3)):
        async with lanes(broken, broken, broken, **limits) as many, many.post() as response:
            assert (response.status, sum(map(len, many.rids()))) == (500, num)


async def test_the_only_lane_is_asked_again_when_it_said_nothing():
    """A connection that broke may have been bad luck; a refusal for load is not asked again."""
    async with lanes(None) as one:
        replies = iter([Reply(200, EVENTS, (b"", Fault.CLOSE)), chat_reply(stream=False)])
        one.scripted[0].reply = lambda _: next(replies)
        async with one.post() as response:
            reasons = (await response.json())["outrider"]["reasons"]
        assert any("it was asked again" in reason for reason in reasons)
        one.scripted[0].reply = lambda _: error_reply(503)
        num_before = len(one.rids()[0])
        async with one.post() as response:
            assert (response.status, len(one.rids()[0])) == (503, num_before + 1)


async def test_a_full_lane_is_no_way_out_for_a_busy_one():
    """It would only wait there."""
    async with lanes(error_reply(503), None) as two:
        two.gateway.pool.lanes[1].reports(LaneLoad(16, 3, 16, time.monotonic()))
        async with two.post() as response:
            assert (response.status, len(two.rids()[1])) == (503, 0)


async def test_a_lane_that_keeps_failing_is_left_out_and_comes_back():
    """Refusals and load never do that; a probe that is answered brings it back."""
    for harmless in (400, 408, 409, 422, 429, 503, 504):
        async with lanes(error_reply(harmless), error_reply(harmless)) as two:
            for _ in range(2 * MAX_FAILURES):
                async with two.post():
                    pass
            assert not any(lane.breaker.is_open for lane in two.gateway.pool.lanes)
    async with lanes(error_reply(500), None) as two:
        lane = two.gateway.pool.lanes[0]
        for _ in range(MAX_FAILURES + 3):
            await two.lane_of("hello")
        assert len(two.rids()[0]) in (MAX_FAILURES, MAX_FAILURES + 1), "a probe, where that took a second"
        assert (await two.metric('outrider_lane_breaker_open{lane="lane0"}'), lane.breaker.is_open) == (1, True)
        async with two.http.get(two.gateway.url + "/outrider/lanes") as response:
            shown = (await response.json())["lanes"][0]["breaker"]
        assert shown["state"] in ("open", "half-open") and shown["num_failures"] == len(two.rids()[0])
        two.scripted[0].reply = lambda _: chat_reply(stream=False)
        async with asyncio.timeout(60):
            while lane.breaker.is_open:
                await two.lane_of("hello")
                await asyncio.sleep(0.05)


async def test_the_only_lane_is_used_with_an_open_breaker():
    """There is nothing to lose by it, and its first answer closes the breaker."""
    async with lanes(error_reply(500)) as one:
        for _ in range(MAX_FAILURES):
            async with one.post():
                pass
        assert one.gateway.pool.lanes[0].breaker.is_open
        one.scripted[0].reply = lambda _: chat_reply(stream=False)
        assert await one.lane_of("hello") == "lane0"
        assert not one.gateway.pool.lanes[0].breaker.is_open


async def test_a_drained_lane_ends_what_it_has_and_takes_nothing_new():
    """Until it is resumed; the gateway is not ready when no lane takes requests."""
    goes_on, steps = asyncio.Event(), chat_reply(stream=True).steps
    async with lanes(Reply(200, EVENTS, (*steps[:2], goes_on, *steps[2:])), None) as two:
        url = two.gateway.url
        running = two.gateway.pool.lanes[0]
        async with two.post(stream=True) as response:
            await response.content.readuntil(b"\n\n")
            async with two.http.post(url + "/outrider/lanes/lane0/drain") as answer:
                shown = await answer.json()
            assert (shown["is_draining"], shown["num_in_flight"], shown["state"]) == (True, 1, "ready")
            assert [await two.lane_of(f"hello {i}") for i in range(4)] == ["lane1"] * 4
            goes_on.set()
            assert "[DONE]" in await response.text()
        async with two.http.post(url + "/outrider/lanes/lane1/drain"), two.http.get(url + "/ready") as ready:
            assert ready.status == 503
        async with two.post() as refused:
            assert "lane0 is draining" in (await refused.json())["error"]["message"]
        async with two.http.post(url + "/outrider/lanes/lane0/resume"):
            assert running.takes_requests
        two.scripted[0].reply = lambda _: chat_reply(stream=False)
        assert await two.lane_of("hello") == "lane0"
        async with two.http.post(url + "/outrider/lanes/other/drain") as unknown:
            assert unknown.status == 404


async def test_conversations_stay_with_the_lane_that_has_their_beginning():
    """Turn after turn, spread over the lanes; but not when that lane is much fuller, or gone."""
    async with lanes(None, None) as two:
        first, second = two.gateway.pool.lanes
        homes = {}
        for i, lane in enumerate((first, second, first, second)):
            other = second if lane is first else first
            other.enter(0.0)
            homes[i] = await two.lane_of(f"task {i}")
            other.leave()
        assert Counter(homes.values()) == {"lane0": 2, "lane1": 2}
        turns = {i: [f"task {i}"] for i in homes}
        for turn in range(5):
            for i, home in homes.items():
                turns[i] += [f"answer {turn}", f"go on {turn}"]
                assert await two.lane_of(*turns[i]) == home
        # Both are as fast, and the first is taken where nothing speaks for the other.
        for home, rules in {"lane0": {"best-rate", "plain", "no-drafter"}, "lane1": {"home"}}.items():
            told = next(turns[i] for i in homes if homes[i] == home)
            async with two.post([*told, "answer", "and why"]) as response:
                report = (await response.json())["outrider"]
            assert report["lane"] == home and report["rule"] in rules
            assert any("beginning of the conversation" in one for one in report["reasons"]) == (home == "lane1")
        asked = [*turns[0], "answer", "and now"]
        for _ in range(12):
            first.enter(0.0)
        assert await two.lane_of(*asked) == "lane1"
        for _ in range(12):
            first.leave()
        assert await two.lane_of(*asked, "answer", "then") == "lane1", "where it was served last"
        second.is_draining = True
        assert await two.lane_of(*asked, "answer", "then", "answer", "last") == "lane0"


async def test_a_named_session_stays_with_its_lane():
    """Where its texts do not show that they belong together; without the name the first of equals takes them."""
    async with lanes(None, None) as two:
        first = two.gateway.pool.lanes[0]
        first.enter(0.0)
        session = {"headers": {"x-session-id": "agent 7"}}
        async with two.post(["plan"], **session) as response:
            assert response.headers["x-outrider-lane"] == "lane1"
        first.leave()
        async with two.post(["written anew"], **session) as response:
            assert response.headers["x-outrider-lane"] == "lane1"
        assert await two.lane_of("written anew, too") == "lane0"
