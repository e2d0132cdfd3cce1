"""Admission: how many requests are at lanes, and who waits for a place: by priority, then tenants in turn.

Each group of lanes has places and a queue of its own."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, defaultdict, deque
from functools import partial
from typing import NamedTuple

from outrider.config import AdmissionSection
from outrider.core import PRIORITIES, Priority
from outrider.errors import DeadlineExceeded, QueueFull, QueueTimeout

_RETRY_AFTER_S = 1.0

#: True: the place is ours; False: somebody more urgent waits in our stead.
_Place = asyncio.Future[bool]


class Claim(NamedTuple):
    """Who asks for a place."""

    priority: Priority = "default"
    tenant: str = "none"
    deadline_s: float | None = None
    """`time.monotonic()` at which the answer is of no use any more."""


ANYBODY = Claim()


class _Line:
    """Those who wait with one priority: tenants take turns, and each is served in the order of arrival."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._tenants: OrderedDict[str, deque[_Place]] = OrderedDict()
        self.turn = 0.0
        """Grows by 1 / share with every place given; the line with the smallest is next."""

    @property
    def is_empty(self) -> bool:
        return not self._tenants

    def add(self, tenant: str, place: _Place) -> None:
        self._tenants.setdefault(tenant, deque()).append(place)

    def pop(self) -> _Place:
        tenant, places = self._tenants.popitem(last=False)
        place = places.popleft()
        if places:
            self._tenants[tenant] = places  # behind the others
        return place

    def displace(self) -> None:
        """The newest of the tenant with most waits no more."""
        tenant = max(self._tenants, key=lambda one: len(self._tenants[one]))
        place = self._tenants[tenant][-1]
        self.remove(tenant, place)
        place.set_result(False)

    def remove(self, tenant: str, place: _Place) -> None:
        places = self._tenants[tenant]
        places.remove(place)
        if not places:
            del self._tenants[tenant]


class _Slot:
    """The context manager of `Admission.slot`; a class, since one made of a generator costs several times as much."""

    def __init__(self, admission: Admission, claim: Claim) -> None:
        self._admission = admission
        self._claim = claim

    async def __aenter__(self) -> None:
        place = self._admission.enter(self._claim)
        if place is not None:
            await self._admission.wait(self._claim, place)

    async def __aexit__(self, *_: object) -> None:
        self._admission.leave()


class Admission:
    """A bounded number of places and a bounded queue for them. Decisions are plain methods; only `slot` waits.

    Priorities share places in proportion (stride scheduling), so that none starves.
    """

    def __init__(self, limits: AdmissionSection) -> None:
        self.limits = limits
        self._lines = {one: _Line(limits.shares.get(one, 1.0)) for one in PRIORITIES}
        self._turn = 0.0
        self.num_in_flight = 0
        self.num_queued = 0

    def __repr__(self) -> str:
        return f"<Admission {self.num_in_flight} in flight, {self.num_queued} queued>"

    def enter(self, claim: Claim = ANYBODY) -> _Place | None:
        """Take a place at once (None), or queue for one (a future that is done when it is ours).

        QueueFull when the queue is at its limit, unless somebody less urgent waits there, who then gets it instead.
        """
        if self.num_in_flight < self.limits.max_in_flight and not self.num_queued:
            self.num_in_flight += 1
            return None
        if self.num_queued >= self.limits.max_queued:
            self._displace_for(claim)
        place = asyncio.get_running_loop().create_future()
        line = self._lines[claim.priority]
        if line.is_empty:  # waiting time that was not used gives no credit
            line.turn = max(line.turn, self._turn)
        line.add(claim.tenant, place)
        self.num_queued += 1
        return place

    def _displace_for(self, claim: Claim) -> None:
        less_urgent = PRIORITIES[: PRIORITIES.index(claim.priority) : -1]
        line = next((self._lines[one] for one in less_urgent if not self._lines[one].is_empty), None)
        if line is None:
            raise QueueFull(f"{self.num_queued} requests are waiting already", retry_after_s=_RETRY_AFTER_S)
        line.displace()
        self.num_queued -= 1

    def leave(self) -> None:
        """Give the place to the next in the queue, or free it."""
        if not self.num_queued:
            self.num_in_flight -= 1
            return
        waiting = [line for line in self._lines.values() if not line.is_empty]
        line = min(waiting, key=lambda one: one.turn)
        self._turn = line.turn
        line.turn += 1 / line.share
        self.num_queued -= 1
        line.pop().set_result(True)

    def give_up(self, claim: Claim, place: _Place) -> None:
        """Stop waiting; a place that was given in this very moment goes on to the next."""
        if place.done():
            if place.result():
                self.leave()
        else:
            self._lines[claim.priority].remove(claim.tenant, place)
            self.num_queued -= 1

    def slot(self, claim: Claim = ANYBODY) -> _Slot:
        """Hold a place for the block.

        QueueFull; QueueTimeout after `queue_timeout_s` in the queue; DeadlineExceeded at the claim's deadline.
        """
        return _Slot(self, claim)

    async def wait(self, claim: Claim, place: _Place) -> None:
        """Until `place`, which `enter` gave, is ours; giving it up at every other end."""
        limit_s = self.limits.queue_timeout_s
        left_s = limit_s if claim.deadline_s is None else claim.deadline_s - time.monotonic()
        try:
            # Not `wait_for`: it would cancel the future, whose result says who has the place.
            await asyncio.wait([place], timeout=max(min(limit_s, left_s), 0.0))
        except asyncio.CancelledError:
            self.give_up(claim, place)
            raise
        if place.done():
            if place.result():
                return
            raise QueueFull("the queue is full of more urgent requests", retry_after_s=_RETRY_AFTER_S)
        self.give_up(claim, place)
        if left_s < limit_s:
            raise DeadlineExceeded("the deadline passed while the request waited for a place")
        raise QueueTimeout(f"no place became free within {limit_s:g} s", retry_after_s=_RETRY_AFTER_S)


class Admissions:
    """An `Admission` for each group of lanes: where one model's lanes are full or hang, no other model waits."""

    def __init__(self, limits: AdmissionSection) -> None:
        self.limits = limits
        self._groups: defaultdict[str, Admission] = defaultdict(partial(Admission, limits))

    def of(self, model: str) -> Admission:
        """Of the lanes that serve this model, which some lane does."""
        return self._groups[model]

    @property
    def num_in_flight(self) -> int:
        """Over all groups."""
        return sum(one.num_in_flight for one in self._groups.values())

    @property
    def num_queued(self) -> int:
        """Over all groups."""
        return sum(one.num_queued for one in self._groups.values())
