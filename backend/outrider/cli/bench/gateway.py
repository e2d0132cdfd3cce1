"""`outrider bench gateway`: what a gateway adds to a lane, every target in the same interleaved rounds."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from statistics import median
from typing import Annotated

import orjson
import typer

from outrider.cli.bench import real_lane
from outrider.cli.bench.aims import Aim, aim_rows, at_least, at_most
from outrider.cli.bench.peers import PEERS, peer_server
from outrider.cli.bench.servers import API_KEY, CHAT, DEPARTURES, HANG, HANG_BEGUN, MODEL, STAMP, TICK, Server, server
from outrider.cli.bench.show import JsonFile, show, write_json
from outrider.cli.console import refuse, run_async
from outrider.workloads.conditions import conditions
from outrider.workloads.watch import percentile
from outrider.workloads.wire import Wire, fetch, post

NUM_CONNECTIONS, NUM_CALLS, NUM_TICKING, NUM_TEXTS = 32, 60, 8, 1024
LOAD_S, ABORT_WAIT_S = 1.5, 2.0


@dataclass
class Figures:
    """What was seen of one target; seconds."""

    target: str
    call_s: list[float] = field(default_factory=list)
    added_p50_s: list[float] = field(default_factory=list)
    """One per round: median of the target less that of the lane asked directly."""
    first_byte_s: list[float] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)
    """From the lane's write to the client's read, per event."""
    per_second: list[float] = field(default_factory=list)
    """Requests per second of each round."""
    abort_s: dict[str, list[float | None]] = field(default_factory=dict)
    """None: the lane was not left within `ABORT_WAIT_S`."""
    client_share: float = 0.0
    """Share of a core that this client used under load, the largest of all rounds."""
    resident_mb: float = 0.0


def _body(text: str = "Write a function that adds two numbers.", *, is_stream: bool = False) -> bytes:
    system = "You are a careful programmer. Answer with code only, and keep it as short as it can be. " * 2
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    fields = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 64, "stream": is_stream}
    return post(CHAT, fields, API_KEY)


def _bodies(number: int) -> list[bytes]:  # of different texts: one that was seen before might be known
    return [_body(f"Write a function that adds {one} numbers.") for one in range(number)]


async def _measure_calls(target: Server, figures: Figures) -> float:
    """One at a time on a kept-alive connection; returns the median."""
    wire = await Wire.connect(target.url)
    times = []
    for request in _bodies(NUM_CALLS):
        began_s = time.monotonic()
        await wire.ask(request)
        times.append(time.monotonic() - began_s)
    wire.close()
    figures.call_s += times
    return median(times)


async def _measure_first_byte(target: Server, figures: Figures) -> None:
    wire = await Wire.connect(target.url)
    for _ in range(NUM_CALLS):
        began_s = time.monotonic()
        await wire.ask(_body(is_stream=True))
        figures.first_byte_s.append((wire.first_s or time.monotonic()) - began_s)
    wire.close()


async def _measure_load(target: Server, figures: Figures) -> None:
    requests = _bodies(NUM_TEXTS)
    end_s = time.monotonic() + LOAD_S
    count = itertools.count()

    async def caller() -> None:
        wire = await Wire.connect(target.url)
        while time.monotonic() < end_s:
            await wire.ask(requests[next(count) % NUM_TEXTS])
        wire.close()

    began_s, cpu_s = time.monotonic(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(NUM_CONNECTIONS)))
    lasted_s = time.monotonic() - began_s
    figures.per_second.append(next(count) / lasted_s)
    figures.client_share = max(figures.client_share, (time.process_time() - cpu_s) / lasted_s)


async def _measure_lag(target: Server, figures: Figures) -> None:
    """Streams of paced events, several at once."""

    def on_body(data: bytes) -> None:
        now_s = time.monotonic()
        figures.lag_s.extend(now_s - float(stamp) for stamp in STAMP.findall(data))

    wires = [await Wire.connect(target.url) for _ in range(NUM_TICKING)]
    for wire in wires:
        wire.on_body = on_body
    await asyncio.gather(*(wire.ask(_body(TICK + "x", is_stream=True)) for wire in wires))
    for wire in wires:
        wire.close()


async def _measure_aborts(target: Server, lane: Server, figures: Figures, number: int) -> None:
    phases = {"whole": (HANG, False), "silent prefill": (HANG, True), "mid-stream": (HANG_BEGUN, True)}
    for phase, (script, is_stream) in phases.items():
        tag = re.sub(r"\W", "", f"{target.name}{phase}{number}")
        wire = await Wire.connect(target.url)
        asking = asyncio.create_task(wire.ask(_body(script + tag, is_stream=is_stream)))
        await asyncio.sleep(0.15)
        left_s = time.monotonic()
        wire.close()
        await asyncio.wait([asking])
        asking.exception()
        figures.abort_s.setdefault(phase, []).append(await _departure(lane, tag, left_s))


async def _departure(lane: Server, tag: str, left_s: float) -> float | None:
    """How long after `left_s` the lane saw the request of `tag` being left."""
    while time.monotonic() - left_s < ABORT_WAIT_S:
        departures = orjson.loads(await fetch(lane.url, post(DEPARTURES, {}, API_KEY)))
        if tag in departures:
            return float(departures[tag]) - left_s
        await asyncio.sleep(0.02)
    return None


async def _measure(targets: Sequence[Server], rounds: int) -> list[Figures]:
    """Every figure of every target in every round, each round in another order."""
    lane = targets[0]
    seen = {target.name: Figures(target.name) for target in targets}
    for target in targets:  # warm: connections, caches, first imports
        await _measure_calls(target, Figures("warm-up"))
        await _measure_first_byte(target, Figures("warm-up"))
    for number in range(rounds):
        order = [*targets[number % len(targets) :], *targets[: number % len(targets)]]
        medians = {target.name: await _measure_calls(target, seen[target.name]) for target in order}
        for target in order:
            figures = seen[target.name]
            figures.added_p50_s.append(medians[target.name] - medians[lane.name])
            await _measure_first_byte(target, figures)
            await _measure_load(target, figures)
            await _measure_lag(target, figures)
            await _measure_aborts(target, lane, figures, number)
    for target in targets:
        seen[target.name].resident_mb = target.resident_mb
    return list(seen.values())


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one target; milliseconds unless the name says otherwise."""

    target: str
    p50: float
    added_p50: float
    added_p99: float
    requests_per_s: float
    first_byte: float
    added_first_byte: float
    lag_p99: float
    added_lag_p99: float
    abort_max: float | None
    """The slowest of all phases; None when the lane was never told in some case."""
    resident_mb: float
    client_share: float


def summarise(figures: Figures, direct: Figures) -> Summary:
    """Medians over rounds; p99 over all calls."""
    first_byte, lag = median(figures.first_byte_s), percentile(figures.lag_s, 0.99)
    aborts = [value for values in figures.abort_s.values() for value in values]
    known = [value for value in aborts if value is not None]
    return Summary(
        target=figures.target,
        p50=1000 * median(figures.call_s),
        added_p50=1000 * median(figures.added_p50_s),
        added_p99=1000 * (percentile(figures.call_s, 0.99) - percentile(direct.call_s, 0.99)),
        requests_per_s=median(figures.per_second),
        first_byte=1000 * first_byte,
        added_first_byte=1000 * (first_byte - median(direct.first_byte_s)),
        lag_p99=1000 * lag,
        added_lag_p99=1000 * (lag - percentile(direct.lag_s, 0.99)),
        abort_max=1000 * max(known) if len(known) == len(aborts) else None,
        resident_mb=figures.resident_mb,
        client_share=figures.client_share,
    )


#: Figure and what it may be at most.
AIMS = {"added_p50": 1.0, "added_first_byte": 3.0, "added_lag_p99": 2.0, "abort_max": 50.0, "resident_mb": 80.0}


def gateway_aims(ours: Summary) -> list[Aim]:
    """What the gateway may add and use, and what it must do; a lane that was never told is a miss."""
    speed = at_least("requests_per_s", ours.requests_per_s, 2000.0)
    found = [speed, *(at_most(name, getattr(ours, name), limit) for name, limit in AIMS.items())]
    return [replace(one, is_met=False, why="never") if one.figure is None else one for one in found]


def gateway(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions.")] = 5,
    peer: Annotated[
        list[str] | None, typer.Option(help=f"Measure this peer too: {', '.join(PEERS)}. Installs it when missing.")
    ] = None,
    json_file: JsonFile = None,
    lane_url: Annotated[str | None, typer.Option("--lane", help="Only what is added to this running lane.")] = None,
) -> None:
    """What a gateway adds: the lane asked directly, ours, a bare relay of the same HTTP library, and peers."""
    if lane_url is not None:
        refuse({"--peer": peer, "--json": json_file}, "not of --lane, which gives one sentence")
        return typer.echo(real_lane.sentence(real_lane.measure(lane_url, rounds)))
    figures: list[Figures] = []

    async def main() -> None:
        figures.extend(await _measure(targets, rounds))

    facts = conditions(rounds=rounds, connections=NUM_CONNECTIONS, body_bytes=len(_body()))
    with ExitStack() as stack:
        lane = stack.enter_context(server("direct"))
        ours = (stack.enter_context(server(kind, lane.url)) for kind in ("outrider", "aiohttp relay"))
        peers = (stack.enter_context(peer_server(name, lane.url)) for name in peer or [])
        targets = [lane, *ours, *peers]
        run_async(main())
    summaries = [summarise(one, figures[0]) for one in figures]
    names = [field.name for field in fields(Summary) if field.name != "target"]
    rows = [{"ms": name, **{one.target: getattr(one, name) for one in summaries}} for name in names]
    notes = []
    if float(str(facts["load_1m"])) > float(str(facts["num_cores"])):
        notes.append("the machine was busy before the start: the tails say little")
    if max(one.client_share for one in summaries[1:]) > 0.8:
        notes.append("the client used over 80 % of a core: requests/s are a lower bound")
    tables = {"one machine, interleaved rounds": rows, "aims": aim_rows(gateway_aims(summaries[1]))}
    show(tables, notes, facts)
    data = {"conditions": facts, "summary": [*map(asdict, summaries)], "figures": [*map(asdict, figures)]}
    write_json(json_file, data)
