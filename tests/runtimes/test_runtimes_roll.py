from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from gateway.world import eventually
from outrider.core import LaneState
from outrider.profiles import UrlSection
from outrider.runtimes.client import LaneClient
from outrider.runtimes.pool import Pool
from outrider.runtimes.roll import Roll, addresses_of
from outrider.runtimes.scripted import ScriptedLane
from outrider.telemetry.metrics import Metrics


@asynccontextmanager
async def rolled(section, **options):
    pool = Pool([])
    async with LaneClient(Metrics()) as client:
        task = asyncio.create_task(Roll(section, pool, client, **options).run())
        yield pool
        task.cancel()
        await asyncio.wait([task])
        assert pool.lanes == ()


def names(pool):
    return [lane.name for lane in pool.lanes]


async def test_each_url_is_a_lane():
    """A single one has the profile's name; all become ready by themselves."""
    async with ScriptedLane() as a, ScriptedLane() as b:
        async with rolled(UrlSection(name="x", kind="url", urls=[a.url + "/"])) as pool:
            await eventually(lambda: pool.is_ready)
            assert names(pool) == ["x"]
        async with rolled(UrlSection(name="x", kind="url", urls=[a.url, b.url])) as pool:
            await eventually(lambda: len(pool.lanes) == 2 and all(lane.is_ready for lane in pool.lanes))
            assert names(pool) == [f"x@127.0.0.1:{a.port}", f"x@127.0.0.1:{b.port}"]


async def test_addresses_come_and_go():
    """A name is resolved again and again: new addresses are added, lost ones removed, an outage changes nothing."""
    answers = [["127.0.0.1"], ["127.0.0.1", "::1"], OSError("no such name"), ["::1"]]

    async def resolver(host, port):
        assert host == "lanes.internal"
        answer = answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    section = UrlSection(name="x", kind="url", urls=["http://lanes.internal:9"], resolve=True, refresh_s=0.01)
    async with rolled(section, resolver=resolver) as pool:
        await eventually(lambda: names(pool) == ["x@127.0.0.1:9"])
        first = pool.lanes[0]
        answers.pop(0)
        await eventually(lambda: names(pool) == ["x@127.0.0.1:9", "x@[::1]:9"])
        answers.pop(0)
        await asyncio.sleep(0.05)
        assert pool.lanes[0] is first and len(pool.lanes) == 2
        answers.pop(0)
        await eventually(lambda: names(pool) == ["x@[::1]:9"])
        assert first.state is LaneState.STOPPED


async def test_a_lost_address_is_watched_until_nothing_runs_there():
    """It gets no new requests; those that it has are failed when it stops answering, else left alone."""
    answers = [["127.0.0.1"]]

    async def resolver(_host, _port):
        return answers[0]

    async with ScriptedLane() as scripted:
        url = f"http://lanes.internal:{scripted.port}"
        section = UrlSection(name="x", kind="url", urls=[url], resolve=True, refresh_s=0.01)
        async with rolled(section, resolver=resolver) as pool:
            await eventually(lambda: pool.is_ready)
            lane = pool.lanes[0]
            lane.enter(0.0)
            failed = []
            lane.on_failure.add(lambda: failed.append(lane.name))
            answers[0] = []
            await eventually(lambda: not pool.lanes)
            num_asked = len(scripted.requests)
            await eventually(lambda: len(scripted.requests) > num_asked)
            assert lane.is_ready and not failed
            answers[0] = ["127.0.0.1"]
            await eventually(lambda: pool.lanes == (lane,))
            answers[0] = []
            await eventually(lambda: not pool.lanes)
            await scripted.__aexit__()
            await eventually(lambda: failed)
            lane.leave()
            await eventually(lambda: lane.state is LaneState.STOPPED)


async def test_a_name_that_cannot_be_resolved_keeps_its_own_addresses_only():
    """Those that another name has lost go."""
    answers = {"a": ["10.0.0.1"], "b": ["10.0.0.2"]}

    async def resolver(host, _port):
        if answers[host] is None:
            raise OSError("no such name")
        return answers[host]

    section = UrlSection(name="x", kind="url", urls=["http://a:9", "http://b:9"], resolve=True, refresh_s=0.01)
    async with rolled(section, resolver=resolver) as pool:
        await eventually(lambda: names(pool) == ["x@10.0.0.1:9", "x@10.0.0.2:9"])
        answers |= {"a": None, "b": ["10.0.0.3"]}
        await eventually(lambda: names(pool) == ["x@10.0.0.1:9", "x@10.0.0.3:9"])


async def test_names_of_lanes_hold_no_passwords():
    """The address that is asked has them, resolved or not."""

    async def resolver(_host, _port):
        return ["127.0.0.2"]

    urls = ["http://me:pw@localhost:9", "http://me:pw@localhost:10/x"]
    for resolve, host in ((False, "localhost"), (True, "127.0.0.2")):
        section = UrlSection(name="x", kind="url", urls=urls, resolve=resolve)
        async with rolled(section, resolver=resolver) as pool:
            await eventually(lambda pool=pool: len(pool.lanes) == 2)
            assert names(pool) == [f"x@{host}:9", f"x@{host}:10"]
            assert [lane.url for lane in pool.lanes] == [f"http://me:pw@{host}:9", f"http://me:pw@{host}:10/x"]


async def test_a_watch_that_breaks_is_in_the_log(caplog):
    """As for every other lane."""
    section = UrlSection(name="x", kind="url", urls=["http://127.0.0.1:9"])
    async with rolled(section) as pool:
        await eventually(lambda: pool.lanes)
        pool.lanes[0].url = 7
        await eventually(lambda: "not looked after" in caplog.text)


async def test_the_systems_resolver_gives_addresses():
    """Each once, whatever the order."""
    assert "127.0.0.1" in await addresses_of("127.0.0.1", 80)
