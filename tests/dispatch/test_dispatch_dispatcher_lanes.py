"""Which of several lanes gets a request, and with which plan."""

from __future__ import annotations

import time

import orjson
import pytest

from dispatch.test_dispatch_dispatcher import BODY, LOAD, Parts, make_call, parts, relay
from outrider.config import AdmissionSection
from outrider.core import SURFACES, Hints, LaneLoad
from outrider.errors import (
    InvalidRequest,
)
from outrider.policy.loader import Source
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.policy.reload import PolicyFiles
from outrider.runtimes.abilities import Abilities, KRange
from outrider.runtimes.client import LaneClient
from outrider.runtimes.lane import Lane, ModelCard
from outrider.runtimes.scripted import ScriptedLane
from outrider.telemetry.metrics import Metrics


class Group(Parts):
    """Two lanes of one model: one only decodes, one drafts n-grams and does not honour min_p."""

    def __init__(self, url, client, limits):
        super().__init__(url, client, limits)
        cards = [ModelCard("m", {"id": "m"})]
        sampled = SURFACES - {"min_p"}
        self.lane.becomes_ready(cards, Abilities({"ngram": KRange(1, 4)}, True, sampled))
        plain = Lane("plain", url)
        plain.becomes_ready(cards, Abilities(surfaces=SURFACES))
        self.pool.add(plain)


@pytest.mark.parametrize(
    ("fields", "hints", "expected"),
    [
        ({"temperature": 0}, {"k": 3}, ("one", Plan("ngram", 3))),
        ({"temperature": 0}, {"k": 9}, ("one", Plan("ngram", 4))),
        ({"temperature": 1, "min_p": 0.1}, {"k": 3}, ("plain", PLAN_OFF)),
    ],
)
async def test_a_request_goes_to_the_nearest_lane(fields, hints, expected):
    """The lane is told the plan that it runs, and so is the client."""
    async with ScriptedLane() as scripted, LaneClient(Metrics()) as client:
        group = Group(scripted.url, client, AdmissionSection())
        body = BODY | fields
        run = await relay(group.dispatcher, make_call(body=body, raw=orjson.dumps(body), hints=Hints(**hints)))
        sent = orjson.loads(scripted.requests[-1].body)["custom_params"]["outrider"]
        assert (run.lane.name, run.plan) == expected
        assert sent == run.plan.to_wire() == run.report()["effective"]
        assert any("the plan was" in reason for reason in run.report()["reasons"]) == (run.plan.k != hints["k"])


async def test_equal_lanes_share_and_a_lane_that_is_down_is_left_out():
    """With loads unknown by our own requests in flight; what the others cannot take is the last one's."""
    async with parts() as p:
        second = Lane("two", p.lane.url)
        second.becomes_ready(p.lane.models)
        p.pool.add(second)
        async with p.dispatcher.run(make_call()) as first, p.dispatcher.run(make_call()) as other:
            assert {first.lane.name, other.lane.name} == {"one", "two"}
            p.lane.fails("broke")
            async with p.dispatcher.run(make_call()) as third:
                assert third.lane.name == "two"


async def test_drafters_are_those_that_the_lane_says_it_has():
    """A lane without any decodes plainly, whatever the workload allows; its word may change when it comes back."""
    async with parts() as p:
        body = BODY | {"temperature": 0}
        call = make_call(body=body, hints=Hints(task="quote"))
        p.lane.reports(LOAD, LOAD.num_requests)
        async with p.dispatcher.run(call) as run:
            assert run.plan == PLAN_OFF
        p.lane.becomes_ready(p.lane.models, Abilities({"suffix": KRange(2, 3)}, True, SURFACES))
        p.lane.reports(LaneLoad(0, 0, 16, time.monotonic()))
        async with p.dispatcher.run(call) as run:
            assert run.plan == Plan("suffix", 3)
            assert "inputs" not in run.report()


async def test_what_a_trial_would_do_is_counted(tmp_path):
    """For whoever tries a file beside the one in force: how often the plans differ, and by how much."""
    text = "version: 1\nworkload: {}\ndrafters: {}\n"
    trial = "trial: {workload: next, mode: shadow, share: 0.5}\n"
    (tmp_path / "default.yaml").write_text(text.format("default", "{}") + trial)
    (tmp_path / "next.yaml").write_text(text.format("next", "{ngram: {max_k: 4}}"))
    async with ScriptedLane() as scripted, LaneClient(Metrics()) as client:
        group = Group(scripted.url, client, AdmissionSection())
        group.dispatcher.files = PolicyFiles(Source([tmp_path]))
        for _ in range(4):
            await relay(group.dispatcher, make_call(body=BODY | {"temperature": 0}, hints=Hints(task="quote")))
        names = {"workload": "default", "trial": "next", "mode": "shadow"}
        read = client.metrics.registry.get_sample_value
        assert read("outrider_trials_total", names | {"result": "other"}) == 2
        live, tried = (read("outrider_trial_token_seconds_total", names | {"plan": one}) for one in ("live", "trial"))
        assert live > tried > 0


async def test_an_exact_workload_refuses_what_no_lane_honours(tmp_path):
    """A 400 that names the field."""
    (tmp_path / "default.yaml").write_text("version: 1\nworkload: default\nexact: true\ndrafters: {}\n")
    async with parts() as p:
        p.dispatcher.files = PolicyFiles(Source([tmp_path]))
        body = BODY | {"temperature": 0.7}
        with pytest.raises(InvalidRequest) as refused:
            await relay(p.dispatcher, make_call(body=body))
        assert refused.value.param == "temperature"
        p.assert_free(400)
