"""The one path of a request through the dispatcher: exactly one outcome, whatever happens."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from hashlib import sha256

import orjson
import pytest

from gateway.world import eventually
from outrider.config import AdmissionSection, KeySection, packaged_data
from outrider.core import Hints, LaneLoad, SpecStats
from outrider.dispatch.admission import Admissions
from outrider.dispatch.call import Call
from outrider.dispatch.dispatcher import Dispatcher
from outrider.dispatch.keys import Key
from outrider.errors import (
    LaneUnavailable,
    ModelNotFound,
    QueueFull,
    QueueTimeout,
    RequestError,
    ServiceError,
)
from outrider.policy.loader import Source
from outrider.policy.reload import PolicyFiles
from outrider.runtimes.abilities import Abilities
from outrider.runtimes.client import LaneClient
from outrider.runtimes.lane import Lane, ModelCard
from outrider.runtimes.pool import Pool
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Fault, Reply, error_reply
from outrider.telemetry.metrics import Metrics

BODY = {"messages": [{"role": "user", "content": "hello"}]}
LOAD = LaneLoad(num_running=2, num_waiting=0, max_running=16, read_at_s=0.0)


def make_call(**fields):
    defaults = {
        "request_id": "r", "path": "/v1/chat/completions", "raw": orjson.dumps(BODY), "body": BODY, "hints": Hints(),
        "model": None, "is_stream": False, "wants_stats": False, "num_choices": 1, "arrived_at_s": time.monotonic(),
    }  # fmt: skip
    return Call(**(defaults | fields))


class Parts:
    """A dispatcher over one lane, and what it reported."""

    def __init__(self, url, client, limits):
        self.lane = Lane("one", url)
        self.lane.becomes_ready([ModelCard("m", {"id": "m"})])
        self.admission = Admissions(limits)
        self.pool = Pool([self.lane])
        self.outcomes = []
        self.dispatcher = Dispatcher(
            self.admission,
            self.pool,
            client,
            PolicyFiles(Source([packaged_data("policies")])),
            client.metrics,
            lambda _call, outcome: self.outcomes.append(outcome),
        )

    def assert_free(self, status):
        assert (self.admission.num_in_flight, self.admission.num_queued) == (0, 0)
        assert self.lane.num_in_flight == 0
        assert self.dispatcher.num_open == 0
        assert [outcome.status for outcome in self.outcomes] == [status]


@asynccontextmanager
async def parts(reply=None, **limits):
    async with ScriptedLane(reply) as scripted, LaneClient(Metrics()) as client:
        yield Parts(scripted.url, client, AdmissionSection(**limits))


async def relay(dispatcher, call):
    """What the gateway does with a whole answer."""
    async with dispatcher.run(call) as run:
        async with run.open() as answer:
            await answer.body()
        run.saw_event()
        run.succeed()
        return run


async def test_a_request_runs_and_reports_one_outcome_with_its_phases():
    """Times add up, everything is free again."""
    async with parts() as p:
        async with p.dispatcher.run(make_call(is_stream=True)) as run:
            for _ in range(2):
                run.saw_event()
            run.succeed()
        p.assert_free(200)
        outcome = p.outcomes[0]
        assert outcome.error_code is None
        assert set(outcome.phases) == {"admit", "plan", "prefill", "decode"}
        assert sum(outcome.phases.values()) == pytest.approx(outcome.total_s, abs=0.05)
        assert run.report()["lane"] == "one"


@pytest.mark.parametrize(("status", "kind"), [(400, RequestError), (503, ServiceError)])
async def test_a_lanes_error_is_the_outcome(status, kind):
    """With its status, and raised to the caller."""
    async with parts(lambda _request: error_reply(status)) as p:
        with pytest.raises(kind):
            await relay(p.dispatcher, make_call())
        p.assert_free(status)


async def test_an_unknown_model_is_refused_before_the_queue():
    """It takes no place and waits for none."""
    async with parts(max_in_flight=1) as p, p.admission.of("m").slot():
        with pytest.raises(ModelNotFound):
            await relay(p.dispatcher, make_call(model="other"))
        assert [outcome.status for outcome in p.outcomes] == [404]


async def test_no_ready_lane_is_unavailable():
    """With one outcome like any other end."""
    async with parts() as p:
        p.lane.fails("broke")
        with pytest.raises(LaneUnavailable):
            await relay(p.dispatcher, make_call())
        p.assert_free(503)


async def test_queue_errors_are_outcomes():
    """A full queue and a wait that is too long."""
    async with parts(max_in_flight=1, max_queued=0) as p:
        async with p.admission.of("m").slot():
            with pytest.raises(QueueFull):
                await relay(p.dispatcher, make_call())
        p.assert_free(503)
    async with parts(max_in_flight=1, queue_timeout_s=0.02) as p:
        async with p.admission.of("m").slot():
            with pytest.raises(QueueTimeout):
                await relay(p.dispatcher, make_call())
        p.assert_free(408)


async def test_what_was_never_sent_is_not_counted_on_its_key():
    """Refused by the queue or for want of a lane, or left while it waited; what a lane refused is counted."""
    digest = sha256(b"secret").hexdigest()
    key = Key(KeySection(name="a", sha256=digest, requests_per_min=5, tokens_per_min=500), 0.0)

    def left():
        return [key.headers()[f"x-ratelimit-remaining-{what}"] for what in ("requests", "tokens")]

    async with parts(lambda _request: error_reply(400), max_in_flight=1, max_queued=1) as p:
        async with p.admission.of("m").slot():
            queued = asyncio.create_task(relay(p.dispatcher, make_call(key=key)))
            await eventually(lambda: p.admission.num_queued == 1)
            with pytest.raises(QueueFull):
                await relay(p.dispatcher, make_call(key=key))
            queued.cancel()
            await asyncio.wait([queued])
        p.lane.url, url = None, p.lane.url
        with pytest.raises(LaneUnavailable):
            await relay(p.dispatcher, make_call(key=key))
        assert (left(), key.num_running) == (["5", "500"], 0)
        p.lane.url = url
        with pytest.raises(RequestError):
            await relay(p.dispatcher, make_call(key=key))
        assert left()[0] == "4"


async def test_cancellation_frees_everything():
    """While the lane is silent, and while queued."""
    hang = lambda _request: Reply(200, (), (Fault.HANG,))  # noqa: E731
    async with parts(hang, max_in_flight=1) as p:
        running, queued = (asyncio.create_task(relay(p.dispatcher, make_call())) for _ in range(2))
        await eventually(lambda: p.admission.num_queued == 1)
        queued.cancel()
        running.cancel()
        ends = await asyncio.gather(running, queued, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        assert [outcome.status for outcome in p.outcomes] == [499, 499]
        p.outcomes.pop()
        p.assert_free(499)
        await asyncio.wait_for(p.dispatcher.wait_until_idle(), 60)


async def test_a_fault_of_ours_is_an_internal_error():
    """An exception that is none of the tree."""
    async with parts() as p:
        with pytest.raises(RuntimeError):
            async with p.dispatcher.run(make_call()):
                raise RuntimeError
        p.assert_free(500)
        assert p.outcomes[0].error_code == "internal_error"


async def test_a_failure_told_in_the_stream_is_the_outcome():
    """The gateway says how it ended when no exception does."""
    async with parts() as p:
        async with p.dispatcher.run(make_call()) as run:
            run.fail(LaneUnavailable("gone"))
        p.assert_free(503)


async def test_the_policy_sees_the_load_without_this_request():
    """What others have on the lane, and our own count; the request itself is not in it."""
    async with parts() as p:
        p.lane.reports(LOAD, LOAD.num_requests)
        for _ in range(3):
            p.lane.enter(0.0)
        async with p.dispatcher.run(make_call()) as run:
            assert run.decision.load.num_running == 3
            run.succeed()


async def test_the_model_is_named_to_the_lane_only_when_the_client_did_not():
    """A name that the client gave stays byte for byte."""
    async with ScriptedLane() as scripted, LaneClient(Metrics()) as client:
        p = Parts(scripted.url, client, AdmissionSection())
        await relay(p.dispatcher, make_call())
        assert scripted.requests[-1].json()["model"] == "m"
        raw = b'{"model": "\\u006d", "messages": []}'
        await relay(p.dispatcher, make_call(raw=raw, body=orjson.loads(raw), model="m"))
        assert scripted.requests[-1].body.startswith(raw[:-1])


async def test_a_proposed_count_that_cannot_be_believed_is_unknown():
    """Where the lane changes its width, SGLang's count is of the width at launch."""
    async with parts() as p:
        p.lane.becomes_ready(p.lane.models, Abilities(counts_proposed=False))
        async with p.dispatcher.run(make_call()) as run:
            run.saw_stats(SpecStats(2, 3, (0, 1, 1), 8))
            assert run.report()["observed"]["num_proposed"] is None
