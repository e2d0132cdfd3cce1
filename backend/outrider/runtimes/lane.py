"""A lane: a running server with known models, a state and a load. Knows no processes and sends nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from outrider.core import GpuLoad, LaneLoad, LaneState
from outrider.profiles import SGLangSection, UrlSection
from outrider.runtimes.abilities import Abilities, lane_ability
from outrider.runtimes.breaker import Breaker
from outrider.runtimes.disagreements import disagreements


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as the lane lists it under `/v1/models`."""

    id: str
    fields: Mapping[str, object]
    """The whole entry, `id` included, for passing on."""


class Lane:
    """One server. `url` is None while nothing is there to be asked."""

    def __init__(self, name: str, url: str | None = None, profile: SGLangSection | UrlSection | None = None) -> None:
        self.name = name
        self.profile = profile
        """What the configuration says of it; None when it says nothing that could be wrong."""
        self.url = url
        self.state = LaneState.STARTING
        self.reason: str | None = "starting"
        """Why the lane is not ready; None when it is."""
        self.models: tuple[ModelCard, ...] = ()
        """Known since the lane was first ready, and kept while it restarts."""
        self._model_ids: frozenset[str] = frozenset()
        self.abilities = Abilities()
        """By its own word, as of when it was last ready, and what only the profile knows."""
        self.ability = self.unplanned_ability = lane_ability(name, self.abilities)
        """The same for decisions, on routes that carry a plan and on those that do not; one object as long as it
        says the same."""
        self.disagreements: tuple[str, ...] = ()
        """Where its own word is not that of the profile."""
        self.gpus: tuple[GpuLoad, ...] | None = None
        """Those of a server that runs here, as last read; None while that is unknown."""
        self.num_in_flight = 0
        self.breaker = Breaker()
        """Another one after each start: what failed before says nothing of it."""
        self.is_draining = False
        """Takes no new requests, by an administrator's word; also over restarts."""
        self.on_failure: set[Callable[[], None]] = set()
        """Called when the lane fails: what waits for an answer would wait for ever."""
        self.on_change: set[Callable[[], None]] = set()
        """Called when the lane has entered a state, in which it may have been."""
        self._polled: LaneLoad | None = None
        self._num_others = 0
        """Requests in the last reading that other callers sent."""
        self._ready = asyncio.Event()

    def __repr__(self) -> str:
        names = ", ".join(card.id for card in self.models)
        return f"<Lane {self.name} {self.state.value} {self.url} [{names}] {self.num_in_flight} in flight>"

    @property
    def is_ready(self) -> bool:
        """Whether its server answers."""
        return self.state is LaneState.READY

    @property
    def takes_requests(self) -> bool:
        """Whether new requests may go there."""
        return self.state is LaneState.READY and not self.is_draining

    @property
    def has_room(self) -> bool:
        """It does not say that a request would have to wait there."""
        load = self.load()
        return load is None or not (load.num_waiting or load.num_running >= load.max_running > 0)

    @property
    def runs(self) -> str:
        """Its model and build, as of when it was last ready."""
        model = self.abilities.model or ", ".join(card.id for card in self.models)
        return f"{model} on {self.abilities.version or 'an unknown build'}"

    def serves(self, model: str) -> bool:
        """Whether it has a model of that name."""
        return model in self._model_ids

    def starts(self, url: str) -> None:
        """A server was launched at `url`; it is not ready yet."""
        self.url = url
        self._enter(LaneState.STARTING, "starting")

    def becomes_ready(self, models: Sequence[ModelCard], abilities: Abilities | None = None) -> None:
        """The server answered that it can serve these models, and what it can do; None when it did not say."""
        self.models, self._model_ids = tuple(models), frozenset(card.id for card in models)
        found, said = abilities or Abilities(), None if self.profile is None else self.profile.speculation
        if said is not None and said.draft_context is not None:
            found = replace(found, contexts=dict.fromkeys(found.drafters, said.draft_context))
        if found != self.abilities:
            self.abilities, self.ability = found, lane_ability(self.name, found)
            self.unplanned_ability = lane_ability(self.name, found.without_plans())
        self.disagreements = () if self.profile is None else disagreements(self.profile, self.abilities)
        self._enter(LaneState.READY, None)

    def waits(self, reason: str) -> None:
        """Not ready yet, for this reason."""
        if self.state is LaneState.STARTING:
            self.reason = reason

    def pauses(self, reason: str) -> None:
        """The server answers, and says that it takes no requests for now; those that it has go on."""
        self._enter(LaneState.PAUSED, reason)

    def fails(self, reason: str, *, is_gone: bool = False) -> None:
        """The server stopped answering; `is_gone` when nothing listens at its URL any more."""
        if is_gone:
            self.url = None
        self._enter(LaneState.FAILED, reason)
        for call in tuple(self.on_failure):
            call()

    def stops(self) -> None:
        """Stopped by us, for good."""
        self.url = None
        self._enter(LaneState.STOPPED, "stopped")

    def _enter(self, state: LaneState, reason: str | None) -> None:
        self.state, self.reason = state, reason
        self._polled = self.gpus = None
        if state is LaneState.READY:
            self.breaker = Breaker()
            self._ready.set()
        else:
            self._ready.clear()
        for call in tuple(self.on_change):
            call()

    async def wait_until_ready(self) -> None:
        """Return as soon as the lane is ready; for ever otherwise, so give it a timeout."""
        await self._ready.wait()

    def enter(self, now_s: float) -> None:
        """Count one request in flight, until `leave`."""
        self.num_in_flight += 1
        self.breaker.begins(now_s)

    def leave(self) -> None:
        """A request has ended there."""
        self.num_in_flight -= 1

    def reports(self, load: LaneLoad | None, num_own: int = 0) -> None:
        """Keep what the lane said of its load, `num_own` of whose requests were ours; None when it said nothing."""
        self._polled = load
        self._num_others = 0 if load is None else max(load.num_requests - num_own, 0)

    def to_wire(self) -> dict[str, Any]:
        """The lane as `/outrider/lanes` shows it; `load` is null while it is unknown."""
        load = self.load()
        return {
            "name": self.name,
            "url": self.url,
            "state": self.state.value,
            "reason": self.reason,
            "models": [card.id for card in self.models],
            "abilities": self.abilities.to_wire() if self.models else None,
            "disagreements": self.disagreements,
            "num_in_flight": self.num_in_flight,
            "is_draining": self.is_draining,
            "breaker": self.breaker.to_wire(time.monotonic()),
            "load": None if load is None else load.to_wire(),
            "gpus": self.gpus_to_wire(),
        }

    def gpus_to_wire(self) -> list[dict[str, Any]] | None:
        """Null while they are unknown."""
        return None if self.gpus is None else [asdict(gpu) for gpu in self.gpus]

    def load(self) -> LaneLoad | None:
        """Requests of others at the last reading, and ours as of now; None while there is no reading.

        A reading is up to a poll interval old, so ours in it are replaced by our own exact count: a burst counts at
        once, and what has ended does not count any more. What exceeds the lane's running limit is waiting there.
        """
        polled = self._polled
        if polled is None:
            return None
        total = self._num_others + self.num_in_flight
        running = min(total, polled.max_running or total)
        return LaneLoad(
            running, total - running, polled.max_running, polled.read_at_s, polled.token_usage, polled.tokens_per_s
        )
