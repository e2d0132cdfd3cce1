"""How late the event loop is, measured all the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from outrider.telemetry.metrics import Metrics

_INTERVAL_S = 0.1


async def lag_measured(metrics: Metrics) -> AsyncIterator[None]:
    """While the generator is suspended."""

    async def watch() -> None:
        while True:
            due_s = time.monotonic() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            metrics.loop_lagged(max(time.monotonic() - due_s, 0.0))

    task = asyncio.create_task(watch())
    yield
    task.cancel()
    await asyncio.wait([task])
