"""What a worker is told, and what it makes of it."""

from __future__ import annotations

import pytest

from outrider.config import Config, KeySection, LaneSection, SGLangSection, UrlSection
from outrider.core import LaneState
from outrider.profiles import SpeculationSection
from outrider.runtimes.lane import Lane
from outrider.workers.member import LaneNews, Member, Setup, lanes_of
from outrider.workers.share import Share

LANES = (
    LaneSection(name="own", model="/m"),
    SGLangSection(name="big", kind="sglang", device="cpu", speculation=SpeculationSection()),
    UrlSection(name="far", kind="url", urls=("http://127.0.0.1:9",)),
)


def setup(**news):
    lanes = {"own": LaneNews.of(Lane("own")), "big": LaneNews.of(Lane("big"))} | news
    return Setup(index=1, count=2, config=Config(lanes=LANES), lanes=lanes, drained=frozenset({"far"}))


def test_a_setup_survives_its_line():
    """The lanes print as before, by which what was learnt is found; and what nobody set is not set now."""
    before = setup()
    after = Setup.model_validate_json(before.to_line())
    assert after == before and str(after.config.lanes) == str(before.config.lanes)
    assert b"\n" not in before.to_line()
    assert after.share == Share(1, 2)


def test_keys_of_the_configuration_go_with_it():
    """Workers must know whom to let in."""
    auth = Config(auth={"keys": [KeySection(name="a", sha256="0" * 64)]})
    line = setup().model_copy(update={"config": auth, "lanes": {}}).to_line()
    assert Setup.model_validate_json(line).config == auth


def test_a_worker_has_a_lane_for_each_that_the_parent_launches():
    """Where it listens now; those of others it finds by itself."""
    own, big = lanes_of(setup(own=LaneNews(url="http://127.0.0.1:7", state=LaneState.READY, reason=None)))
    assert (own.name, own.url, own.state) == ("own", "http://127.0.0.1:7", LaneState.STARTING)
    assert (big.name, big.url, big.state) == ("big", None, LaneState.STARTING)
    assert own.profile is None and big.profile == LANES[1]


async def test_news_move_a_lane():
    """A new address is a start, none is a failure, and the same one is no news: readiness each finds out itself."""
    lane, parents = Lane("own"), Lane("own")
    member = Member(Share(1, 2), [lane], every=None)
    parents.on_change.add(lambda: member.hear("own", LaneNews.of(parents)))
    parents.starts("http://127.0.0.1:7")
    assert (lane.url, lane.state) == ("http://127.0.0.1:7", LaneState.STARTING)
    lane.becomes_ready([])
    parents.becomes_ready([])
    assert lane.is_ready
    parents.fails("its process ended: no memory", is_gone=True)
    assert (lane.url, lane.state, lane.reason) == (None, LaneState.FAILED, "its process ended: no memory")
    parents.starts("http://127.0.0.1:8")
    assert (lane.url, lane.state) == ("http://127.0.0.1:8", LaneState.STARTING)
    parents.stops()
    assert (lane.url, lane.state) == (None, LaneState.STOPPED)


def test_what_the_parent_cannot_reach_a_worker_judges_by_itself():
    """The server is still there."""
    lane = Lane("own", "http://127.0.0.1:7")
    lane.becomes_ready([])
    LaneNews(url=lane.url, state=LaneState.FAILED, reason="stopped answering").apply(lane)
    assert lane.is_ready


@pytest.mark.parametrize("name", ["nobody", ""])
def test_news_of_an_unknown_lane_change_nothing(name):
    """They are of a lane that this worker has not."""
    lane = Lane("own")
    Member(Share(), [lane], every=None).hear(name, LaneNews(url="http://x", state=LaneState.STARTING, reason=None))
    assert lane.url is None
