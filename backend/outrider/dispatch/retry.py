"""Sends a request again, on another lane, when its lane failed or was full and nothing was delivered yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from outrider.dispatch.judge import judge
from outrider.dispatch.run import Run
from outrider.errors import APIError, LaneFailed, StoreUnavailable
from outrider.policy.decision import Decision
from outrider.runtimes.lane import Lane
from outrider.runtimes.protocol import BUSY

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


async def answered(run: Run, relay: Callable[[], Awaitable[_T]]) -> _T:
    """What `relay` gives, which opens the run and relays its answer; called again for each further attempt.

    It raises an error only as long as nothing was delivered; what it tells in the answer it hands to `run.fail`.
    """
    while True:
        try:
            result = await relay()
        except APIError as error:
            judge(run.lane, run.sent_s, None if run.is_settled else error, run.client.metrics)
            if run.is_settled or not _moved(run, error):
                raise
        except (asyncio.CancelledError, ConnectionResetError):
            run.client.metrics.attempted(run.lane.name, "left")
            raise
        else:
            judge(run.lane, run.sent_s, run.failure, run.client.metrics)
            return result


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
    is_busy, tried = error.status in BUSY, [*run.tried, run.lane]
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
