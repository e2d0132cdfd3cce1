from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from gateway.world import eventually
from outrider.core import GpuLoad, LaneState
from outrider.profiles import SGLangSection, UrlSection
from outrider.runtimes import load
from outrider.runtimes.client import LaneClient
from outrider.runtimes.lane import Lane
from outrider.runtimes.load import LaneWatch
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Reply, json_reply
from outrider.telemetry.metrics import Metrics


@asynccontextmanager
async def watched(lane):
    async with LaneClient(Metrics()) as client:
        task = asyncio.create_task(LaneWatch(lane, client).run())
        yield
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_a_lane_becomes_ready_when_it_says_so():
    """With its models and its load known from the first moment."""
    async with ScriptedLane(ready=False, load={"num_running_reqs": 3}) as scripted:
        lane = Lane("a", scripted.url)
        async with watched(lane):
            await eventually(lambda: any(request.path == "/ready" for request in scripted.requests))
            assert lane.state is LaneState.STARTING
            scripted.is_ready = True
            await eventually(lambda: lane.is_ready)
            assert [card.id for card in lane.models] == ["scripted"]
            assert (lane.load().num_running, lane.load().max_running) == (3, 16)


async def test_the_load_is_read_again_and_again():
    """A changed load is seen; a lane that says nothing any more is unknown, and still ready."""
    async with ScriptedLane() as scripted:
        lane = Lane("a", scripted.url)
        async with watched(lane):
            await eventually(lambda: lane.load() is not None)
            scripted.load = {"num_running_reqs": 7, "num_waiting_reqs": 2}
            await eventually(lambda: lane.load().num_requests == 9)
            scripted.load = None
            await eventually(lambda: lane.load() is None)
            assert lane.is_ready


async def test_a_lane_that_says_it_is_not_ready_is_paused_until_it_is():
    """When it says so several times in a row, not once; nobody who waits for it is told that it failed."""
    async with ScriptedLane() as scripted:
        lane, failures = Lane("a", scripted.url), []
        lane.on_failure.add(lambda: failures.append(lane))
        answers = iter([200, 503, 503, 200, 503, 503, 503])
        told = []

        def ready(_request):
            told.append(next(answers, 503))
            return json_reply({}, told[-1])

        scripted.overrides["/ready"] = ready
        async with watched(lane):
            await eventually(lambda: lane.state is LaneState.PAUSED)
            assert (told, lane.reason) == ([200, 503, 503, 200, 503, 503, 503], "/ready answers 503")
            del scripted.overrides["/ready"]
            await eventually(lambda: lane.is_ready)
            assert not failures
            scripted.is_ready = False
            await eventually(lambda: lane.state is LaneState.PAUSED)
            await scripted.__aexit__(None, None, None)
            await eventually(lambda: lane.state is LaneState.FAILED)
            assert failures == [lane]


async def test_a_lane_that_vanishes_fails_and_recovers_when_it_is_back():
    """After several polls without an answer, not after one."""
    async with ScriptedLane() as scripted:
        lane = Lane("a", scripted.url)
        stack = watched(lane)
        await stack.__aenter__()
        await eventually(lambda: lane.is_ready)
    await eventually(lambda: lane.state is LaneState.FAILED)
    assert "stopped answering" in lane.reason
    async with ScriptedLane(port=scripted.port):
        await eventually(lambda: lane.is_ready)
        await stack.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([{"num_running_reqs": 1, "num_waiting_reqs": 2, "max_running_requests": 2}] * 2, (4, 2, 4)),
        ([{"num_running_reqs": 1, "num_waiting_reqs": 2}], None),
        ([{"num_running_reqs": "1", "num_waiting_reqs": 2, "max_running_requests": 4}], None),
        ([7], None),
        ([], None),
        ("x", None),
    ],
)
async def test_ranks_are_summed_and_a_missing_count_is_unknown(loads, expected):
    """Unknown is not idle."""
    async with ScriptedLane() as scripted:
        scripted.overrides["/v1/loads"] = json_reply({"loads": loads})
        lane = Lane("a", scripted.url)
        async with watched(lane):
            await eventually(lambda: lane.is_ready)
            read = lane.load()
            assert (read and (read.num_running, read.num_waiting, read.max_running)) == expected


@pytest.mark.parametrize(
    ("running", "speeds", "expected"), [(1, (0.0, 9.5), 9.5), (1, (0.0, 0.0), None), (0, (0.0, 0.0), 0.0)]
)
async def test_a_speed_of_nothing_while_requests_run_is_unknown(running, speeds, expected):
    """SGLang without metrics says 0, whatever it does."""
    async with ScriptedLane() as scripted:
        one = {"num_running_reqs": running, "num_waiting_reqs": 0, "max_running_requests": 2, "token_usage": 0.5}
        scripted.overrides["/v1/loads"] = json_reply({"loads": [one | {"gen_throughput": speed} for speed in speeds]})
        lane = Lane("a", scripted.url)
        async with watched(lane):
            await eventually(lambda: lane.is_ready)
            assert (lane.load().tokens_per_s, lane.load().token_usage) == (expected, 0.5)


async def test_a_lane_without_models_is_not_ready():
    """Garbage under /v1/models keeps it from taking requests."""
    async with ScriptedLane() as scripted:
        scripted.overrides["/v1/models"] = json_reply({"data": [{"id": 3}, 1]})
        lane = Lane("a", scripted.url)
        async with watched(lane):
            await eventually(lambda: sum(request.path == "/v1/models" for request in scripted.requests) > 1)
            assert not lane.is_ready


async def test_a_lane_without_a_url_is_left_alone():
    """Its process is not there; nobody else may be asked in its place."""
    lane = Lane("a")
    async with watched(lane):
        await asyncio.sleep(0.15)
        assert lane.state is LaneState.STARTING


async def test_a_lane_is_not_ready_before_its_abilities_are_known():
    """The reason says what is missing, or what of it cannot be used."""
    async with ScriptedLane() as scripted:
        scripted.overrides["/server_info"] = json_reply({}, 404)
        lane = Lane("a", scripted.url)
        async with watched(lane):
            await eventually(lambda: lane.reason == "/server_info answers 404, so nothing is known of its abilities")
            scripted.overrides["/server_info"] = json_reply({"speculative_algorithm": "DFLASH"})
            await eventually(lambda: "DFLASH" in lane.reason)
            assert not lane.is_ready
            del scripted.overrides["/server_info"]
            await eventually(lambda: lane.is_ready)
            assert lane.abilities.drafters["ngram"].max == 16


@asynccontextmanager
async def with_gauges(page: str):
    """A lane that is ready and tells its load by `/metrics` only, and the server behind it."""
    async with ScriptedLane() as scripted:
        scripted.overrides["/v1/loads"] = json_reply({}, 404)
        scripted.overrides["/metrics"] = gauges(page)
        lane = Lane("a", scripted.url)
        async with watched(lane):
            await eventually(lambda: lane.is_ready)
            yield lane, scripted


def gauges(page: str) -> Reply:
    return Reply(200, (("Content-Type", "text/plain"),), (page.encode(),))


@pytest.mark.parametrize(("device", "is_ours"), [("cuda", True), ("cpu", True), ("cuda", False)])
async def test_gpus_are_read_of_servers_that_we_launch(device, is_ours, monkeypatch):
    """Those that the profile names; a server of others, or on a CPU, has none that are known."""
    asked = []
    gpus = (GpuLoad(3, 0.5, 1, 2),)
    monkeypatch.setattr(load, "read_gpus", lambda indices: asked.append(indices) or gpus)
    async with ScriptedLane() as scripted:
        profile = SGLangSection(name="a", kind="sglang", device=device, gpus=(3,) if device == "cuda" else ())
        if not is_ours:
            profile = UrlSection(name="a", kind="url", urls=[scripted.url])
        lane = Lane("a", scripted.url, profile)
        async with watched(lane):
            await eventually(lambda: sum(request.path == "/v1/loads" for request in scripted.requests) > 2)
            assert lane.gpus == (gpus if device == "cuda" and is_ours else None)
    assert set(asked) == ({(3,)} if device == "cuda" and is_ours else set())


async def test_without_loads_the_gauges_are_read():
    """As of older versions of SGLang; one that is missing, or no gauges at all, is unknown."""
    page = 'sglang:num_running_reqs{tp_rank="0"} 3.0\nsglang:num_queue_reqs{tp_rank="0"} 2.0\n'
    async with with_gauges(page) as (lane, scripted):
        assert (lane.load().num_requests, lane.load().max_running) == (5, 16)
        scripted.overrides["/metrics"] = gauges(page[:37])
        await eventually(lambda: lane.load() is None)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "x"])
async def test_a_gauge_that_is_no_number_is_unknown(value):
    """The lane is looked after all the same."""
    async with with_gauges(f"sglang:num_running_reqs {value}\nsglang:num_queue_reqs 2.0\n") as (lane, _):
        assert lane.load() is None
