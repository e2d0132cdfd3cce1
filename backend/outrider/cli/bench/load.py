"""`outrider bench load`: many slow streams through one gateway process at once, and for how long one likes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Annotated

import typer
from prometheus_client.parser import text_string_to_metric_families

from outrider.cli.bench.aims import Aim, aim_rows, at_most
from outrider.cli.bench.servers import API_KEY, CHAT, MODEL, PACE, STAMP, Server, metrics_page, server
from outrider.cli.bench.show import JsonFile, show, write_json
from outrider.cli.console import run_async
from outrider.workloads.conditions import conditions
from outrider.workloads.stretch import OPENING_S
from outrider.workloads.watch import percentile
from outrider.workloads.wire import Wire, post

_LAG = "outrider_event_loop_lag_seconds"
_SAMPLE_S = 1.0
#: Of a soak that is flat: what the last fifth may use more than the second.
_MAX_GROWTH_MB = 5.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the gateway."""

    num_streams: int
    interval_ms: int
    """Between two events of one stream."""
    stream_s: float
    """How long one stream lasts; another follows at once."""
    total_s: float


#: Streams that are not measured: what a gateway loads at its first requests is not what streams cost.
_WARM = Load(50, 10, 0.2, 0.0)


@dataclass
class Measured:
    """What was seen."""

    idle_mb: float = 0.0
    resident_mb: list[float] = field(default_factory=list)
    """Every second from the moment at which all streams are open."""
    relay_s: list[float] = field(default_factory=list)
    """From the lane's write to the client's read, of one event in a hundred."""
    num_events: int = 0
    num_done: int = 0
    failures: list[str] = field(default_factory=list)
    lag_counts: Mapping[float, float] = field(default_factory=dict)
    """Upper edge in seconds -> sleeps of the gateway's loop that ended at most so late."""


class _Caller:
    """One connection that asks for stream after stream."""

    def __init__(self, url: str, load: Load, measured: Measured) -> None:
        self._url, self._load, self._measured = url, load, measured

    def _request(self, share: float) -> bytes:
        num_events = max(int(share * self._load.stream_s * 1000 / self._load.interval_ms), 1)
        text = f"{PACE}{num_events} {self._load.interval_ms}"
        fields = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": True}
        return post(CHAT, fields, API_KEY)

    async def run(self, first_share: float, *, is_endless: bool) -> None:
        """Stream after stream until cancelled, or one; the first is shorter, so that not all callers ask for the next
        one at one time."""
        try:
            wire = await Wire.connect(self._url)
        except OSError as error:
            self._measured.failures.append(str(error))
            return
        wire.on_body = self._take
        try:
            await self._ask(wire, self._request(first_share))
            while is_endless:
                await self._ask(wire, self._request(1.0))
        except ConnectionError as error:
            self._measured.failures.append(str(error))
        finally:
            wire.close()

    async def _ask(self, wire: Wire, request: bytes) -> None:
        await wire.ask(request)
        self._measured.num_done += 1

    def _take(self, data: bytes) -> None:
        measured = self._measured
        for stamp in STAMP.findall(data):
            measured.num_events += 1
            if measured.num_events % 100 == 0:
                measured.relay_s.append(time.monotonic() - float(stamp))


def lag_counts(page: str) -> dict[float, float]:
    """The cumulative buckets of the loop's lag."""
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {float(one.labels["le"]): one.value for one in samples if one.name == f"{_LAG}_bucket"}


def quantile_edge(counts: Mapping[float, float], share: float) -> float | None:
    """Upper edge of the bucket in which the quantile lies; infinity when it is over all edges, None of nothing."""
    total = max(counts.values(), default=0.0)
    return min(edge for edge, count in counts.items() if count >= share * total) if total else None


async def measure(gateway: Server, load: Load) -> Measured:
    """All streams at once, for `total_s` from the moment at which all are open; events before do not count."""
    await asyncio.gather(*_opened(gateway, _WARM, Measured(), is_endless=False))
    await asyncio.sleep(_SAMPLE_S)
    measured = Measured(idle_mb=gateway.resident_mb)
    streams = []
    for caller in _opened(gateway, load, measured, is_endless=True):
        streams.append(asyncio.create_task(caller))
        await asyncio.sleep(OPENING_S)
    await asyncio.sleep(_SAMPLE_S)
    before = lag_counts(await metrics_page(gateway))
    measured.num_events, measured.num_done = 0, 0
    measured.relay_s.clear()
    while len(measured.resident_mb) * _SAMPLE_S < load.total_s and not all(one.done() for one in streams):
        await asyncio.sleep(_SAMPLE_S)
        measured.resident_mb.append(gateway.resident_mb)
    after = lag_counts(await metrics_page(gateway))
    measured.lag_counts = {edge: count - before.get(edge, 0.0) for edge, count in after.items()}
    for one in streams:
        one.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    return measured


def _opened(
    gateway: Server, load: Load, measured: Measured, *, is_endless: bool
) -> Iterator[Coroutine[None, None, None]]:
    for number in range(load.num_streams):
        yield _Caller(gateway.url, load, measured).run((number + 1) / load.num_streams, is_endless=is_endless)


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run."""

    lag_p99_ms: float | None
    """At most: the edge of a histogram's bucket."""
    kb_per_stream: float | None
    growth_mb: float | None
    """The last fifth of the run less the second."""
    num_failures: int | None
    relay_p50_ms: float | None
    relay_p99_ms: float | None
    events_per_s: float
    num_done: int
    idle_mb: float
    resident_mb: float | None


def summarise(measured: Measured, load: Load) -> Summary:
    """What was not seen is None: memory needs five samples, and at least one stream that brought something."""
    seen, fifth = measured.resident_mb, len(measured.resident_mb) // 5
    relay = measured.relay_s
    lag_s = quantile_edge(measured.lag_counts, 0.99)
    is_loaded = fifth and measured.num_events
    open_mb = median(seen[fifth : 2 * fifth]) if is_loaded else None
    return Summary(
        lag_p99_ms=None if lag_s is None else 1000 * lag_s,
        kb_per_stream=None if open_mb is None else 1024 * (open_mb - measured.idle_mb) / load.num_streams,
        growth_mb=None if open_mb is None else median(seen[-fifth:]) - open_mb,
        num_failures=len(measured.failures) if measured.num_events or measured.failures else None,
        relay_p50_ms=1000 * median(relay) if relay else None,
        relay_p99_ms=1000 * percentile(relay, 0.99) if relay else None,
        events_per_s=measured.num_events / load.total_s,
        num_done=measured.num_done,
        idle_mb=measured.idle_mb,
        resident_mb=max(seen, default=None),
    )


#: Figure and what it may be at most.
AIMS = (("lag_p99_ms", 50.0), ("kb_per_stream", 60.0), ("growth_mb", _MAX_GROWTH_MB), ("num_failures", 0.0))


def load_aims(summary: Summary) -> list[Aim]:
    """Of which nothing is met that was not seen."""
    values = asdict(summary)
    return [at_most(name, values[name], limit) for name, limit in AIMS]


def load(
    streams: Annotated[int, typer.Option(min=1, help="Open at once.")] = 1000,
    interval_ms: Annotated[int, typer.Option(min=1, help="Between two events of a stream.")] = 250,
    stream_s: Annotated[float, typer.Option(min=0.1, help="How long one stream lasts; another follows.")] = 20.0,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long; ten for a soak.")] = 0.5,
    json_file: JsonFile = None,
) -> None:
    """Many streams at once through one gateway process: how late its loop is, what they cost, whether it grows."""
    asked = Load(streams, interval_ms, stream_s, 60 * minutes)
    facts = conditions(**asdict(asked))
    seen: list[Measured] = []

    async def main(gateway: Server) -> None:
        seen.append(await measure(gateway, asked))

    with server("direct") as lane, server("outrider", lane.url) as gateway:
        run_async(main(gateway))
    summary = summarise(seen[0], asked)
    figures = [
        {"figure": name, "outrider": value} for name, value in asdict(summary).items() if name not in dict(AIMS)
    ]
    tables = {"many streams, one process": aim_rows(load_aims(summary)), "beside them": figures}
    show(tables, [f"failed: {failure}" for failure in sorted(set(seen[0].failures))], facts)
    write_json(json_file, {"conditions": facts, "summary": asdict(summary), "measured": asdict(seen[0])})
