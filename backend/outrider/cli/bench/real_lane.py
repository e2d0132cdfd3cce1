"""`outrider bench gateway --lane URL`: what our gateway adds to a lane that runs, on pairs of tiny requests."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import median

from outrider.cli.bench.servers import API_KEY, CHAT, server
from outrider.cli.console import run_async
from outrider.errors import ConfigError
from outrider.workloads.wire import Wire, post

PAIRS_PER_ROUND = 20
#: What the gateway may add, in milliseconds.
AIM_MS = 1.0


@dataclass(frozen=True, slots=True)
class Added:
    """Milliseconds; medians over pairs of one direct request and one through the gateway, in turns the first."""

    direct: float
    through: float
    added: float
    """The median of the differences within the pairs."""
    low: float
    high: float
    """The median of all possible pairs lies between these with a probability of 95 %."""
    num_pairs: int


def measure(lane_url: str, rounds: int) -> Added:
    """Of the lane at `lane_url`, with a gateway of our own before it. ConfigError when nothing answers there."""
    body = {
        "model": _model(lane_url), "messages": [{"role": "user", "content": "Say yes."}], "temperature": 0,
        "max_tokens": 1, "outrider": {"off": True},
    }  # fmt: skip
    request = post(CHAT, body, API_KEY)
    pairs: list[tuple[float, float]] = []

    async def main() -> None:
        direct, ours = await Wire.connect(lane_url), await Wire.connect(gateway.url)
        for number in range(rounds * PAIRS_PER_ROUND + 2):
            first, second = (direct, ours) if number % 2 else (ours, direct)
            taken = {wire: await _ask(wire, request) for wire in (first, second)}
            pairs.append((taken[direct], taken[ours]))
        direct.close()
        ours.close()

    with server("outrider", lane_url) as gateway:
        try:
            run_async(main())
        except ConnectionError as error:
            raise ConfigError(f"--lane {lane_url}: {error}") from error
    return summarise(pairs[2:])  # the first ones fill caches


def summarise(pairs: Sequence[tuple[float, float]]) -> Added:
    """From the seconds of the direct request and of the one through the gateway.

    The interval of the median is between order statistics: how many differences lie below it is binomial.
    """
    added, num = sorted(1000 * (ours - direct) for direct, ours in pairs), len(pairs)
    reach = 0.98 * sqrt(num)
    low, high = max(int(num / 2 - reach), 0), min(ceil(num / 2 + reach), num - 1)
    direct, through = (1000 * median(taken) for taken in zip(*pairs, strict=True))
    return Added(direct, through, median(added), added[low], added[high], num)


def sentence(found: Added) -> str:
    """All figures, and whether the aim is met, missed, or neither can be said."""
    verdict = "met" if found.high <= AIM_MS else "MISSED" if found.low > AIM_MS else "within the noise"
    return (
        f"{found.num_pairs} pairs: lane {found.direct:.2f} ms, through the gateway {found.through:.2f} ms, added "
        f"{found.added:.2f} ms at the median ({found.low:.2f} to {found.high:.2f}; aim <= {AIM_MS:g}: {verdict})"
    )


async def _ask(wire: Wire, request: bytes) -> float:
    began_s = time.monotonic()
    await wire.ask(request)
    return time.monotonic() - began_s


def _model(lane_url: str) -> str:
    try:
        with urllib.request.urlopen(f"{lane_url}/v1/models", timeout=5) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"--lane {lane_url}: no list of models there: {error}") from error
