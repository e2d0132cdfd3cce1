from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from outrider.config import AdmissionSection
from outrider.core import PRIORITIES
from outrider.dispatch.admission import ANYBODY, Admission, Claim
from outrider.errors import DeadlineExceeded, QueueFull, QueueTimeout


def admission(**limits):
    return Admission(AdmissionSection(**({"max_in_flight": 1} | limits)))


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


class Holder:
    """A task that takes a place and keeps it until told."""

    def __init__(self, gate, order=None, name=None, claim=ANYBODY):
        self.release = asyncio.Event()
        self.has_place = False
        self.task = asyncio.create_task(self._hold(gate, order, name, claim))

    async def _hold(self, gate, order, name, claim):
        async with gate.slot(claim):
            self.has_place = True
            if order is not None:
                order.append(name)
            await self.release.wait()


async def test_places_are_bounded_and_freed():
    """The count goes up to the limit and back to zero."""
    gate = admission(max_in_flight=2)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gate.slot())
        await stack.enter_async_context(gate.slot())
        assert gate.num_in_flight == 2
        waiting = Holder(gate)
        await settle()
        assert (gate.num_in_flight, gate.num_queued, waiting.has_place) == (2, 1, False)
    await settle()
    assert waiting.has_place
    waiting.release.set()
    await waiting.task
    assert repr(gate) == "<Admission 0 in flight, 0 queued>"


async def test_first_come_first_served():
    """Places go in the order of arrival; a newcomer does not overtake the queue."""
    gate, order = admission(), []
    holders = [Holder(gate, order, name) for name in range(4)]
    await settle()
    for holder in holders:
        assert holder.has_place
        holder.release.set()
        await holder.task
        await settle()
    assert order == [0, 1, 2, 3]


async def test_a_full_queue_makes_room_for_the_more_urgent():
    """The least urgent go, of the tenant with most the newest; among equals the queue stays as it is."""
    gate, order = admission(max_queued=3), []
    running = Holder(gate)
    claims = [Claim("default", "a"), Claim("bulk", "b"), Claim("bulk", "b")]
    waiting = [Holder(gate, order, number, claim) for number, claim in enumerate(claims)]
    await settle()
    with pytest.raises(QueueFull, match="3 requests are waiting already"):
        gate.enter(Claim("bulk", "c"))
    urgent = [Holder(gate, order, f"urgent {number}", Claim("interactive", "d")) for number in range(2)]
    await settle()
    for displaced in (2, 1):
        with pytest.raises(QueueFull, match="more urgent"):
            await waiting[displaced].task
    assert (gate.num_in_flight, gate.num_queued) == (1, 3)
    for holder in (running, waiting[0], *urgent):
        holder.release.set()
    await asyncio.gather(running.task, waiting[0].task, *(one.task for one in urgent))
    assert sorted(map(str, order)) == ["0", "urgent 0", "urgent 1"]
    assert repr(gate) == "<Admission 0 in flight, 0 queued>"


async def test_who_leaves_when_displaced_had_no_place_to_give_up():
    """Both in one moment: no place is freed that nobody had."""
    gate = admission(max_queued=1)
    running, bulk = Holder(gate), Holder(gate, claim=Claim("bulk"))
    await settle()
    urgent = gate.enter(Claim("interactive"))
    bulk.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bulk.task
    assert (gate.num_in_flight, gate.num_queued, urgent.done()) == (1, 1, False)
    running.release.set()
    await running.task
    assert urgent.result()
    gate.leave()
    assert repr(gate) == "<Admission 0 in flight, 0 queued>"


async def test_a_full_queue_refuses_at_once():
    """With a time to try again."""
    gate = admission(max_queued=1)
    holders = [Holder(gate), Holder(gate)]
    await settle()
    with pytest.raises(QueueFull) as caught:
        async with gate.slot():
            pass
    assert caught.value.retry_after_s
    for holder in holders:
        holder.release.set()
        await holder.task


async def test_waiting_has_a_limit():
    """QueueTimeout after the configured time; the queue is empty then."""
    gate = admission(queue_timeout_s=0.05)
    async with gate.slot():
        with pytest.raises(QueueTimeout):
            async with gate.slot():
                pass
        assert gate.num_queued == 0
    assert gate.num_in_flight == 0


async def test_cancelling_a_waiter_frees_its_place_in_the_queue():
    """Those behind it move up."""
    gate = admission()
    first, second, third = (Holder(gate) for _ in range(3))
    await settle()
    second.task.cancel()
    await settle()
    assert gate.num_queued == 1
    first.release.set()
    await settle()
    assert third.has_place
    third.release.set()
    await third.task
    assert gate.num_in_flight == 0


async def test_a_place_given_to_a_cancelled_waiter_goes_on():
    """The place is given and the waiter cancelled in the same moment: it is not lost."""
    gate = admission()
    first, second, third = (Holder(gate) for _ in range(3))
    await settle()
    first.release.set()
    await asyncio.sleep(0)  # the first leaves; the second has the place and has not run yet
    second.task.cancel()
    await settle()
    assert second.task.cancelled() and not second.has_place
    assert third.has_place
    third.release.set()
    await third.task
    assert (gate.num_in_flight, gate.num_queued) == (0, 0)


async def test_an_exception_in_the_block_frees_the_place():
    """Whatever happens inside."""
    gate = admission()
    with pytest.raises(RuntimeError):
        async with gate.slot():
            raise RuntimeError
    assert gate.num_in_flight == 0


async def test_many_comings_and_goings_leave_nothing_behind():
    """Random holds and cancellations; the counts end at zero and never exceed the limits."""
    gate = admission(max_in_flight=3, max_queued=50)
    holders = [Holder(gate) for _ in range(40)]
    await settle()
    for number, holder in enumerate(holders):
        if number % 3 == 0:
            holder.task.cancel()
        holder.release.set()
        assert gate.num_in_flight <= 3
    await asyncio.gather(*(holder.task for holder in holders), return_exceptions=True)
    assert (gate.num_in_flight, gate.num_queued) == (0, 0)


async def order_of(gate, claims):
    """The order in which claims that all wait get the only place."""
    order = []
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gate.slot())
        holders = [Holder(gate, order, name, claim) for name, claim in enumerate(claims)]
        for holder in holders:
            holder.release.set()
        await settle()
    await asyncio.gather(*(holder.task for holder in holders))
    return order


async def test_priorities_share_places_and_none_starves():
    """In proportion to the shares, however many of the most urgent wait."""
    gate = admission(shares={"interactive": 3, "default": 2, "bulk": 1})
    claims = [Claim(priority) for priority in PRIORITIES for _ in range(12)]
    order = await order_of(gate, claims)
    first = [claims[name].priority for name in order[:12]]
    assert {one: first.count(one) for one in PRIORITIES} == {"interactive": 6, "default": 4, "bulk": 2}


async def test_tenants_of_one_priority_take_turns():
    """Ten requests of one do not delay the two of another."""
    claims = [Claim(tenant="a")] * 10 + [Claim(tenant="b")] * 2
    order = await order_of(admission(), claims)
    assert order[:4] == [0, 10, 1, 11]


async def test_a_priority_that_was_idle_has_no_credit():
    """Having asked for nothing gives no right to all places afterwards."""
    gate = admission(shares={"interactive": 1, "default": 1, "bulk": 1})
    await order_of(gate, [Claim("bulk")] * 20)
    claims = [Claim("interactive")] * 6 + [Claim("bulk")] * 6
    order = await order_of(gate, claims)
    assert sum(claims[name].priority == "bulk" for name in order[:6]) >= 2


async def test_a_deadline_ends_the_wait():
    """Sooner than the queue's own limit, with its own error."""
    gate = admission(queue_timeout_s=5)
    async with gate.slot():
        with pytest.raises(DeadlineExceeded):
            async with gate.slot(Claim(deadline_s=time.monotonic() + 0.05)):
                pass
    assert (gate.num_in_flight, gate.num_queued) == (0, 0)
