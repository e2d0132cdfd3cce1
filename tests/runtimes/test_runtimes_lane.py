from __future__ import annotations

import asyncio
import time

import pytest

from outrider.core import LaneLoad, LaneState
from outrider.profiles import SGLangSection
from outrider.runtimes.abilities import Abilities, KRange
from outrider.runtimes.lane import Lane, ModelCard


def load(running=0, waiting=0, limit=16):
    return LaneLoad(running, waiting, limit, 1.0)


def ready_lane():
    lane = Lane("a", "http://x")
    lane.becomes_ready([ModelCard("m", {"id": "m"})])
    return lane


def test_states_and_their_reasons():
    """A lane starts, is ready, fails, starts again elsewhere, stops; its models are remembered."""
    lane = Lane("a", "http://x")
    assert (lane.state, lane.is_ready, lane.reason) == (LaneState.STARTING, False, "starting")
    lane.becomes_ready([ModelCard("m", {"id": "m"})])
    assert (lane.is_ready, lane.reason, lane.serves("m"), lane.serves("n")) == (True, None, True, False)
    lane.fails("died", is_gone=True)
    assert (lane.state, lane.reason, lane.url) == (LaneState.FAILED, "died", None)
    assert lane.serves("m")
    lane.starts("http://y")
    assert (lane.state, lane.url) == (LaneState.STARTING, "http://y")
    lane.stops()
    assert (lane.state, lane.url) == (LaneState.STOPPED, None)


def test_a_load_is_shown_with_its_age():
    """Of the reading and not of the answer; null while there is none."""
    lane = ready_lane()
    assert lane.to_wire()["load"] is None
    lane.reports(LaneLoad(1, 0, 16, time.monotonic() - 7))
    shown = lane.to_wire()["load"]
    assert 7 <= shown["age_s"] < 60 and "read_at_s" not in shown


def test_the_context_of_a_draft_is_what_the_profile_says():
    """Servers do not tell what their heads were made for; of a drafter without a checkpoint nothing is said."""
    for speculation, expected in (
        ({"drafter": "eagle3", "draft": "d", "draft_context": 2048}, [2048]),
        ({"drafter": "eagle3", "draft": "d"}, [None]),
    ):
        lane = Lane("a", "http://x", SGLangSection(name="a", kind="sglang", speculation=speculation))
        lane.becomes_ready([ModelCard("m", {"id": "m"})], Abilities({"eagle3": KRange(1, 3)}))
        for ability in (lane.ability, lane.unplanned_ability):
            assert [drafter.max_context for drafter in ability.drafters] == expected


def test_repr_shows_the_state():
    """For logs and for tests."""
    assert repr(ready_lane()) == "<Lane a ready http://x [m] 0 in flight>"


@pytest.mark.parametrize(
    ("polled", "ours_then", "ours_now", "expected"),
    [
        (load(), 0, 0, (0, 0)),
        (load(5), 0, 3, (8, 0)),
        (load(5), 5, 0, (0, 0)),
        (load(1), 1, 1, (1, 0)),
        (load(1), 2, 0, (0, 0)),
        (load(16, 4), 20, 20, (16, 4)),
        (load(2), 2, 20, (16, 4)),
        (load(2, 7, limit=2), 3, 1, (2, 5)),
        (load(limit=0), 0, 3, (3, 0)),
    ],
)
def test_the_load_is_what_others_had_and_what_we_have_now(polled, ours_then, ours_now, expected):
    """A reading is old: our requests in it are replaced by our own count; beyond the running limit they wait."""
    lane = ready_lane()
    lane.reports(polled, ours_then)
    lane.num_in_flight = ours_now
    read = lane.load()
    assert (read.num_running, read.num_waiting) == expected
    assert read.read_at_s == polled.read_at_s
    assert read.num_requests >= ours_now


def test_unknown_load_is_none_and_a_change_of_state_forgets_it():
    """A lane that said nothing is not idle, and a restarted one has said nothing."""
    lane = ready_lane()
    assert lane.load() is None
    lane.reports(load(3))
    lane.fails("x")
    lane.becomes_ready(lane.models)
    assert lane.load() is None


def test_a_request_is_counted_from_entering_to_leaving():
    """The load says at once what is ours."""
    lane = ready_lane()
    lane.reports(load(0))
    lane.enter(1.0)
    assert (lane.num_in_flight, lane.load().num_requests) == (1, 1)
    lane.leave()
    assert (lane.num_in_flight, lane.load().num_requests) == (0, 0)


async def test_waiting_for_readiness_ends_with_it():
    """And begins anew after a failure."""
    lane = Lane("a", "http://x")
    waiting = asyncio.create_task(lane.wait_until_ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    lane.becomes_ready([])
    await asyncio.wait_for(waiting, 60)
    lane.fails("x")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lane.wait_until_ready(), 0.01)
