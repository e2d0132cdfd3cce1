"""What an attempt says of its lane: told to the lane's breaker, and counted."""

from __future__ import annotations

import logging
import time

from outrider.errors import APIError
from outrider.runtimes.lane import Lane
from outrider.runtimes.protocol import BUSY
from outrider.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

#: Statuses by which lanes and we refuse for load, or say that time is over. They are no fault of the lane's, and do
#: not show that it is well.
_NO_FAULT = frozenset({408, 429, 503, 504})


def judge(lane: Lane, sent_s: float, error: APIError | None, metrics: Metrics) -> None:
    """Of an attempt that was sent at `sent_s`. A request that was refused for what it is was answered."""
    breaker, result = lane.breaker, "answered"
    if error is None or (error.status < 500 and error.status not in _NO_FAULT):
        breaker.succeeded(sent_s)
    elif error.status in _NO_FAULT:
        result = "busy" if error.status in BUSY else "left"
    else:
        result = "failed"
        num_opened = breaker.num_opened
        breaker.failed(sent_s, time.monotonic())
        if breaker.num_opened > num_opened:
            logger.warning("lane %s is left out for a while: %s", lane.name, error.message)
    metrics.attempted(lane.name, result)
