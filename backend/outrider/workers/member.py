"""What a worker is told of the gateway that it is a part of: its share, the lanes of the parent, how to reach all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from outrider.config import Config, LaneSection, SGLangSection, UrlSection
from outrider.core import LaneState
from outrider.gateway.orders import Every
from outrider.runtimes.lane import Lane
from outrider.workers.share import Share


class LaneNews(BaseModel):
    """Where the server of a lane listens that the parent launches."""

    model_config = ConfigDict(frozen=True)

    url: str | None
    state: LaneState
    reason: str | None

    @classmethod
    def of(cls, lane: Lane) -> LaneNews:
        """What the parent tells workers of the lane."""
        return cls(url=lane.url, state=lane.state, reason=lane.reason)

    def apply(self, lane: Lane) -> None:
        """To the worker's own lane. Whether a server that listens is ready, each worker finds out by itself."""
        if self.url is not None:
            if self.url != lane.url:
                lane.starts(self.url)
        elif self.state is LaneState.STOPPED:
            lane.stops()
        elif self.state is LaneState.FAILED:
            lane.fails(self.reason or "failed", is_gone=True)


class Setup(BaseModel):
    """The parent's first words to a worker."""

    model_config = ConfigDict(frozen=True)

    index: int
    count: int
    config: Config
    lanes: dict[str, LaneNews]
    """Of those that the parent launches."""
    drained: frozenset[str]
    """Names of lanes that an operator has spared."""
    verbose: bool = False
    access_log: bool = False

    def to_line(self) -> bytes:
        """As one line of JSON."""
        # What was not set stays so: some sections tell a default from the same value that somebody set.
        return self.model_dump_json(exclude_unset=True).encode()

    @property
    def share(self) -> Share:
        """Which part of all limits is this worker's."""
        return Share(self.index, self.count)


@dataclass(frozen=True, slots=True)
class Member:
    """One worker's part in the gateway."""

    share: Share
    lanes: Sequence[Lane]
    """Those that the parent launches, in the order of the configuration."""
    every: Every
    drained: frozenset[str] = frozenset()

    def hear(self, name: str, news: LaneNews) -> None:
        """The parent's news of a lane: every one of that name takes them on."""
        for lane in self.lanes:
            if lane.name == name:
                news.apply(lane)


def launched(config: Config) -> list[LaneSection | SGLangSection]:
    """Sections of the lanes that have a process of ours."""
    return [one for one in config.lanes if not isinstance(one, UrlSection)]


def lanes_of(setup: Setup) -> list[Lane]:
    """The worker's own view of the parent's lanes."""
    sections = launched(setup.config)
    found = [Lane(one.name, profile=one if isinstance(one, SGLangSection) else None) for one in sections]
    for lane in found:
        setup.lanes[lane.name].apply(lane)
    return found
