from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from outrider.config import AdmissionSection
from outrider.dispatch.admission import Admission
from outrider.errors import QueueFull, QueueTimeout


def admission(**limits):
    return Admission(AdmissionSection(**({"max_in_flight": 1} | limits)))


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


class Holder:
    """A task that takes a place and keeps it until told."""

    def __init__(self, gate, order=None, name=None):
        self.release = asyncio.Event()
        self.has_place = False
        self.task = asyncio.create_task(self._hold(gate, order, name))

    async def _hold(self, gate, order, name):
        async with gate.slot():
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
