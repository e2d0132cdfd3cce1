"""The lanes of a gateway, and by model the group that can take a request. Plain functions, nothing waits here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from outrider.errors import InvalidRequest, LaneUnavailable, ModelNotFound, RouteNotFound
from outrider.runtimes.lane import Lane, ModelCard


class Pool:
    """All lanes of one gateway, in the order of the configuration."""

    def __init__(self, lanes: Sequence[Lane], drained: Collection[str] = ()) -> None:
        """Lanes of the names in `drained`, those that come later too, take no requests before an operator says so."""
        self.lanes: tuple[Lane, ...] = ()
        self._drained = set(drained)
        self.on_ready: Callable[[Lane], None] | None = None
        """Called with a lane that has just become ready, at first or again."""
        for lane in lanes:
            self.add(lane)

    def __repr__(self) -> str:
        return f"<Pool {' '.join(map(repr, self.lanes))}>"

    @property
    def is_ready(self) -> bool:
        """Some lane takes requests."""
        return any(lane.takes_requests for lane in self.lanes)

    def named(self, name: str) -> Lane:
        """RouteNotFound when there is none: it stands in a path."""
        for lane in self.lanes:
            if lane.name == name:
                return lane
        raise RouteNotFound(f"there is no lane {name!r}; there are {', '.join(one.name for one in self.lanes)}")

    def models(self) -> list[ModelCard]:
        """Every model that some lane serves or did before it failed. LaneUnavailable before any was known."""
        cards: dict[str, ModelCard] = {}
        for lane in self.lanes:
            for card in lane.models:
                cards.setdefault(card.id, card)
        if not cards:
            raise self._unavailable()
        return list(cards.values())

    def card(self, model: str | None) -> ModelCard:
        """The model that is meant: the given one if a lane serves it, or the only one for None.

        ModelNotFound when no lane serves it; LaneUnavailable while some lane's models are still unknown.
        """
        for lane in self.lanes:
            for card in lane.models:
                if card.id == model:
                    return card
        cards = self.models()
        known = ", ".join(card.id for card in cards)
        if not all(lane.models for lane in self.lanes):
            raise self._unavailable()
        if model is not None:
            raise ModelNotFound(f"the model {model!r} does not exist; served: {known}", param="model")
        if len(cards) > 1:
            raise InvalidRequest(f"model is required, one of {known}", param="model")
        return cards[0]

    def ready(self, model: str, route: str | None = None) -> list[Lane]:
        """The group: lanes that take requests and serve `model` on `route`, at least one.

        ModelNotFound when no lane serves it, LaneUnavailable when none of those is ready, RouteNotFound when none
        of those has the route.
        """
        found = [lane for lane in self.lanes if lane.takes_requests and lane.serves(model)]
        if not found:
            self.card(model)  # which says so when no lane has it
            raise self._unavailable()
        able = [lane for lane in found if route is None or route in lane.abilities.routes]
        if not able:
            raise RouteNotFound(f"no lane that is ready for model {model} has the route {route}")
        return able

    def drain(self, name: str, *, is_draining: bool) -> None:
        """The lane takes no new requests, or does again; RouteNotFound. One that goes and comes back stays so."""
        (self._drained.add if is_draining else self._drained.discard)(name)
        self.named(name).is_draining = is_draining

    def add(self, lane: Lane) -> None:
        """A lane more, drained if it was when it was last here."""
        lane.is_draining = lane.name in self._drained
        self.lanes = (*self.lanes, lane)
        lane.on_change.add(partial(self._changed, lane))

    def remove(self, lane: Lane) -> None:
        """Requests that it runs go on; new ones go elsewhere."""
        self.lanes = tuple(other for other in self.lanes if other is not lane)

    def _changed(self, lane: Lane) -> None:
        if self.on_ready is not None and lane.is_ready and lane in self.lanes:
            self.on_ready(lane)

    def describe(self) -> list[dict[str, Any]]:
        """Every lane as `/outrider/lanes` shows it."""
        return [lane.to_wire() for lane in self.lanes]

    def _unavailable(self) -> LaneUnavailable:
        states = "; ".join(f"{lane.name} is {_state(lane)}" for lane in self.lanes)
        return LaneUnavailable(f"no lane is ready to take the request: {states}", retry_after_s=1.0)


def _state(lane: Lane) -> str:
    return "draining" if lane.is_ready and lane.is_draining else lane.state.value
