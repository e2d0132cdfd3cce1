"""Watches the load generator itself: how late its loop wakes, how late it sends, how much of a core it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from outrider.workloads.results import Generator, Stretch

#: The loop is asked to wake this often, in seconds.
_TICK_S = 0.01
#: Above these the generator's own figures say little of the target's.
MAX_LAG_MS, MAX_LATE_MS, MAX_CPU_SHARE = 20.0, 20.0, 0.85


@dataclass(slots=True)
class Seen:
    """Of one stretch."""

    lag_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    """From the moment at which a request was due to that at which it was sent."""
    cpu_share: float = 0.0

    @property
    def lag_p99_ms(self) -> float:
        """Of the client's event loop."""
        return 1000 * percentile(self.lag_s, 0.99)

    @property
    def late_p99_ms(self) -> float:
        """Of requests that were sent later than meant."""
        return 1000 * percentile(self.late_s, 0.99)


@asynccontextmanager
async def watching(seen: Seen) -> AsyncIterator[None]:
    """Watch this thread's loop for the block."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    watch = asyncio.create_task(_watch(seen.lag_s))
    try:
        yield
    finally:
        watch.cancel()
        seen.cpu_share = (time.process_time() - began_cpu_s) / max(time.monotonic() - began_s, _TICK_S)
        await asyncio.wait([watch])


async def _watch(lag_s: list[float]) -> None:
    while True:
        due_s = time.monotonic() + _TICK_S
        await asyncio.sleep(_TICK_S)
        lag_s.append(time.monotonic() - due_s)


def judged(stretches: Sequence[Stretch]) -> Generator:
    """The worst of all stretches; the reasons name what was over its limit."""
    lag_ms = max((one.lag_p99_ms for one in stretches), default=0.0)
    late_ms = max((one.late_p99_ms for one in stretches), default=0.0)
    cpu_share = max((one.cpu_share for one in stretches), default=0.0)
    reasons = []
    if lag_ms > MAX_LAG_MS:
        reasons.append(f"its event loop woke {lag_ms:.0f} ms late (p99; at most {MAX_LAG_MS:g})")
    if late_ms > MAX_LATE_MS:
        reasons.append(f"requests were sent {late_ms:.0f} ms late (p99; at most {MAX_LATE_MS:g})")
    if cpu_share > MAX_CPU_SHARE:
        reasons.append(f"it used {100 * cpu_share:.0f} % of a core (at most {100 * MAX_CPU_SHARE:g} %)")
    return Generator(
        lag_p99_ms=lag_ms, late_p99_ms=late_ms, cpu_share=cpu_share, is_bottleneck=bool(reasons), reasons=reasons
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value at or below which `share` of the values lie; 0 of none."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else 0.0
