"""A second attempt beside a silent one: the first lane to deliver a byte answers, the other one is aborted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outrider.dispatch.judge import judge
from outrider.errors import APIError, RequestError
from outrider.policy.decision import Decision
from outrider.runtimes.client import LaneAnswer
from outrider.runtimes.lane import Lane

if TYPE_CHECKING:
    from outrider.dispatch.run import Run


@dataclass(slots=True)
class _Attempt:
    """At one lane, in a task that ends with the first byte of the answer."""

    lane: Lane
    url: str
    decision: Decision
    sent_s: float
    task: asyncio.Task[LaneAnswer]
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Holds the answer open."""

    async def end(self) -> None:
        """Abort what has not come to its end; without waiting for the lane."""
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.exception()  # retrieved, or asyncio would say in the log that nobody did
        await self.stack.aclose()


@asynccontextmanager
async def hedged(run: Run, after_s: float) -> AsyncIterator[LaneAnswer]:
    """The answer of the run's lane, or of another one that was asked too and was faster; the run is on its lane then.

    Raises what the last of them raises.
    """
    attempts = [_begin(run, run.lane, run.url, run.decision, run.sent_s)]
    standing: _Attempt | None = None
    try:
        await asyncio.wait([attempts[0].task], timeout=after_s)
        if not attempts[0].task.done() and (found := _second(run)) is not None:
            decision, lane, url = found
            lane.enter(time.monotonic())
            attempts.append(_begin(run, lane, url, decision, time.monotonic()))
            run.hedged = [run.lane.name, lane.name]
        standing = await _first(run, attempts)
        _settle(run, attempts, standing)
        for attempt in attempts:
            if attempt is not standing:
                await attempt.end()
        yield standing.task.result()
    finally:
        for attempt in attempts:
            await attempt.end()
        if len(attempts) > 1 and standing is None:  # the client left
            _left(run, attempts[1])
            attempts[1].lane.leave()
            if run.router is not None:
                run.router.served(run.call, run.decision)


def _begin(run: Run, lane: Lane, url: str, decision: Decision, sent_s: float) -> _Attempt:
    stack = AsyncExitStack()

    async def answer() -> LaneAnswer:
        with run.within_deadline(lane):
            found = await stack.enter_async_context(run.sent(lane, url, decision.plan))
            await found.begin()
        return found

    return _Attempt(lane, url, decision, sent_s, asyncio.create_task(answer(), name=f"at {lane.name}"), stack)


def _second(run: Run) -> tuple[Decision, Lane, str] | None:
    """Another lane that is known to have room and honours as much of the request; None when there is none."""
    now_s = time.monotonic()

    def fits(lane: Lane) -> bool:
        is_other = lane is not run.lane and lane not in run.tried
        return is_other and lane.load() is not None and lane.has_room and lane.breaker.lets_pass(now_s)

    if run.router is None:
        return None
    try:
        decision, lane = run.router.route(run.call, run.model, run.outcome, fits)
    except APIError:
        return None
    is_as_exact = decision.rows[0].num_missing <= run.decision.rows[0].num_missing
    if is_as_exact and lane.url is not None:
        return decision, lane, lane.url
    run.router.served(run.call, run.decision)  # asking for another one has moved the conversation
    return None


async def _first(run: Run, attempts: list[_Attempt]) -> _Attempt:
    """The first to deliver a byte or to refuse the request for what it is; where all fail, the last."""
    running = list(attempts)
    while True:
        await asyncio.wait([one.task for one in running], return_when=asyncio.FIRST_COMPLETED)
        for attempt in [one for one in running if one.task.done()]:
            error = attempt.task.exception()
            if not isinstance(error, APIError) or isinstance(error, RequestError) or len(running) == 1:
                return attempt
            running.remove(attempt)


def _settle(run: Run, attempts: list[_Attempt], standing: _Attempt) -> None:
    """The run is on the lane of `standing`, and has left the others; without waiting, so that counts add up."""
    for other in attempts:
        if other is not standing:
            error = other.task.exception() if other.task.done() else None
            if isinstance(error, APIError):
                judge(other.lane, other.sent_s, error, run.client.metrics)
            else:
                _left(run, other)
    if len(attempts) == 1:
        return
    first, second = attempts
    reason = f"lane {first.lane.name} was silent, so lane {second.lane.name} was asked too"
    if standing is first:
        run.reasons.append(reason)
        run.tried.append(second.lane)
    else:
        run.moves(second.decision, second.lane, second.url, reason, second.sent_s)
    second.lane.leave()  # the run has its own place there, or none
    if run.router is not None:
        run.router.served(run.call, run.decision)


def _left(run: Run, attempt: _Attempt) -> None:
    run.client.metrics.attempted(attempt.lane.name, "left")
