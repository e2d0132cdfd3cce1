"""Sends a request again, on another lane, when its lane failed or was full and nothing was delivered yet."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from outrider.dispatch.run import Run
from outrider.errors import APIError, LaneFailed, RequestError, StoreUnavailable
from outrider.policy.decision import Decision
from outrider.runtimes.lane import Lane

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
#: Statuses by which lanes and we refuse for load, or say that time is over. They are no fault of the lane's.
_NO_FAULT = frozenset({408, 429, 503, 504})
_BUSY = frozenset({429, 503})


async def answered(run: Run, relay: Callable[[], Awaitable[_T]]) -> _T:
    """What `relay` gives, which opens the run and relays its answer; called again for each further attempt.

    It raises an error only as long as nothing was delivered; what it tells in the answer it hands to `run.fail`.
    """
    while True:
        try:
            result = await relay()
        except APIError as error:
            _judge(run, None if run.is_settled else error)
            if run.is_settled or not _moved(run, error):
                raise
        except (asyncio.CancelledError, ConnectionResetError):
            run.client.metrics.attempted(run.lane.name, "left")
            raise
        else:
            _judge(run, run.failure)
            return result


def _judge(run: Run, error: APIError | None) -> None:
    """Tell the lane's breaker, and count. A request that the lane refused for what it is was answered."""
    breaker, result = run.lane.breaker, "answered"
    if error is None or isinstance(error, RequestError):
        breaker.succeeded(run.sent_s)
    elif error.status in _NO_FAULT:
        result = "busy" if error.status in _BUSY else "left"
    else:
        result = "failed"
        num_opened = breaker.num_opened
        breaker.failed(run.sent_s, time.monotonic())
        if breaker.num_opened > num_opened:
            logger.warning("lane %s is left out for a while: %s", run.lane.name, error.message)
    run.client.metrics.attempted(run.lane.name, result)


def _moved(run: Run, error: APIError) -> bool:
    """Whether another attempt may help, and then the run is on its lane."""
    if not error.is_retryable or isinstance(error, StoreUnavailable) or len(run.tried) >= run.max_retries:
        return False
    left_s = run.left_s()
    found = None if left_s is not None and left_s <= 0 else _found(run, error)
    if found is None:
        return False
    decision, lane = found
    if lane.url is None:
        return False
    why = "failed" if isinstance(error, LaneFailed) else f"answered {error.status}"
    where = "it was asked again" if lane is run.lane else f"lane {lane.name} was asked"
    run.client.metrics.retried(error.code)
    logger.info("request %s: lane %s %s: %s", run.call.request_id, run.lane.name, why, error.message)
    run.moves(decision, lane, lane.url, f"lane {run.lane.name} {why} before anything was delivered, so {where}")
    return True


def _found(run: Run, error: APIError) -> tuple[Decision, Lane] | None:
    """Another lane; the same one where it is the only one, and failed before it said anything."""
    is_busy, tried = error.status in _BUSY, [*run.tried, run.lane]
    if run.router is None:
        return None
    try:
        return run.router.route(
            run.call, run.model, run.outcome, lambda lane: lane not in tried and (lane.has_room or not is_busy)
        )
    except APIError:
        pass
    if not isinstance(error, LaneFailed) or run.outcome.first_event_s is not None:
        return None
    try:
        return run.router.route(run.call, run.model, run.outcome, lambda lane: lane is run.lane)
    except APIError:
        return None
