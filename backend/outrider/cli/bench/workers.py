"""`outrider bench workers`: what a second worker adds, both gateways in the same interleaved rounds."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated

import orjson
import typer
from prometheus_client.parser import text_string_to_metric_families

from outrider.cli.bench.aims import Aim, aim_rows, at_least
from outrider.cli.bench.served import busy_s, cpu_s, served
from outrider.cli.bench.servers import API_KEY, CHAT, MODEL, Server, metrics_page, server
from outrider.cli.bench.show import JsonFile, show, write_json
from outrider.cli.console import run_async
from outrider.workloads.conditions import conditions
from outrider.workloads.wire import Wire, get, post

#: What so many workers must reach of one, for each that is added to it.
AIM = 0.8
#: Of all cores: where more are busy, the machine is what limits.
_FULL = 0.9
_WHICH = get("/outrider/lanes", API_KEY)
_WARM_S, _IDLE_S = 1.0, 2.0


@dataclass(frozen=True, slots=True)
class Round:
    """One gateway under load in one round."""

    num_workers: int
    num_done: int
    seconds: float
    gateway_s: float
    """Processor time of all its processes."""
    lanes_s: float
    client_s: float
    machine_s: float
    """Processor time of everything that ran on the machine."""
    busiest: float
    """Share of the requests that the busiest worker had."""
    is_alone: bool = False
    """Only one worker was asked; the others were idle."""

    @property
    def per_second(self) -> float:
        """Requests done per second."""
        return self.num_done / self.seconds

    @property
    def gateway_per_request_s(self) -> float:
        """Seconds of processor time that a request takes in the gateway."""
        return self.gateway_s / self.num_done

    def most_per_second(self, num_cores: int) -> float:
        """What so many cores would do at the same processor time a request, were nothing else on them: a worker runs
        on one of them at a time, and lanes and client need theirs."""
        total_s = self.gateway_s + self.lanes_s + self.client_s
        return self.num_done / max(self.gateway_s / self.num_workers, total_s / num_cores)


class _Bench:
    """A gateway, lanes and this client, asked for a while."""

    def __init__(self, gateway: Server, num_workers: int, lanes: Sequence[Server], num_connections: int) -> None:
        self._gateway = gateway
        self._num_workers = num_workers
        self._lanes = lanes
        self._num_connections = num_connections
        messages = [{"role": "user", "content": "Write a function that adds two numbers. " * 5}]
        self._request = post(CHAT, {"model": MODEL, "messages": messages, "max_tokens": 64}, API_KEY)

    async def idle_ms(self, seconds: float) -> float:
        """Processor time, in milliseconds a second, while nothing is asked."""
        before_s = cpu_s(self._gateway.pid)
        await asyncio.sleep(seconds)
        return 1000 * (cpu_s(self._gateway.pid) - before_s) / seconds

    async def run(self, seconds: float, *, is_alone: bool = False) -> Round:
        """Every connection asks again as soon as it is answered; `is_alone`: all are those of one worker."""
        wires = [await self._connected(is_alone=is_alone) for _ in range(self._num_connections)]
        before, answered = self._used(), await self._answered()
        began_s, count = time.monotonic(), itertools.count()

        async def caller(wire: Wire) -> None:
            while time.monotonic() - began_s < seconds:
                await wire.ask(self._request)
                next(count)

        await asyncio.gather(*map(caller, wires))
        lasted_s = time.monotonic() - began_s
        gateway_s, lanes_s, client_s, machine_s = (b - a for a, b in zip(before, self._used(), strict=True))
        answered = await self._answered() - answered
        for wire in wires:
            wire.close()
        busiest = max(answered.values()) / answered.total()
        num_done = next(count)
        used = gateway_s, lanes_s, client_s, machine_s
        return Round(self._num_workers, num_done, lasted_s, *used, busiest, is_alone)

    async def _connected(self, *, is_alone: bool) -> Wire:
        """To the first worker, or to whichever the kernel chooses."""
        while True:
            wire = await Wire.connect(self._gateway.url)
            if not is_alone or orjson.loads(await wire.ask(_WHICH))["worker"] in (None, 0):
                return wire
            wire.close()

    def _used(self) -> tuple[float, float, float, float]:
        lanes_s = sum(cpu_s(lane.pid) for lane in self._lanes)
        return cpu_s(self._gateway.pid), lanes_s, time.process_time(), busy_s()

    async def _answered(self) -> Counter[str]:
        """Requests by worker, all under one name where there is one process."""
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(await metrics_page(self._gateway)):
            for one in family.samples:
                if one.name == "outrider_requests_total" and one.labels["route"] == CHAT:
                    found[one.labels.get("worker", "0")] += int(one.value)
        return found


async def measure(benches: Sequence[_Bench], rounds: int, seconds: float) -> list[Round]:
    """Each gateway in every round, each round in another order; with all workers asked, and with one of them."""
    for bench in benches:
        await bench.run(_WARM_S)
    return [
        await bench.run(seconds, is_alone=is_alone)
        for number in range(rounds)
        for is_alone in (False, True)
        for bench in (benches if number % 2 else reversed(benches))
    ]


def worker_aims(seen: Sequence[Round], num_cores: int) -> list[Aim]:
    """Of the clock, which decides nothing where the machine is too little, and of processor time.

    The second is of one worker that is asked alone, all that the idle others and the parent use included: with a core
    each, workers that do not slow each other down serve so many times as much. That they do not is not measured.
    """
    num = max(each.num_workers for each in seen)
    wanted = 1 + AIM * (num - 1)
    together, alone = ([each for each in seen if each.is_alone == is_alone] for is_alone in (False, True))
    speeds = [b.per_second / a.per_second for a, b in _pairs(together)]
    by_clock = at_least(f"requests/s, {num} workers / one process", median(speeds), wanted)
    busy = median([each.machine_s / each.seconds for each in together if each.num_workers == num])
    if not by_clock.is_met and busy > _FULL * num_cores:
        allowed = median([b.most_per_second(num_cores) / a.most_per_second(num_cores) for a, b in _pairs(together)])
        why = (
            f"cores are the limit, not workers: {busy:.2f} of {num_cores} are busy, and with lanes and client beside "
            f"the gateway they allow {allowed:.2f} at most"
        )
        by_clock = Aim(by_clock.aim, by_clock.wanted, by_clock.figure, None, why=why)
    costs = [b.gateway_per_request_s / a.gateway_per_request_s for a, b in _pairs(alone)]
    what = f"{num} x requests per CPU second, one of {num} workers asked / one process"
    return [by_clock, at_least(what, num / median(costs) if costs else None, wanted)]


def _pairs(seen: Sequence[Round]) -> list[tuple[Round, Round]]:
    """One process and several, of the same round."""
    one, more = ([each for each in seen if (each.num_workers > 1) == is_more] for is_more in (False, True))
    return list(zip(one, more, strict=True))


def rows(seen: Sequence[Round]) -> list[dict[str, object]]:
    """Medians over rounds; CPU time in microseconds a request."""
    found: list[dict[str, object]] = []
    for is_alone, num in sorted({(each.is_alone, each.num_workers) for each in seen}):
        mine = [each for each in seen if (each.is_alone, each.num_workers) == (is_alone, num)]
        cpu = {
            name: median([1e6 * getattr(each, f"{name}_s") / each.num_done for each in mine])
            for name in ("gateway", "lanes", "client")
        }
        found.append({
            "workers": num,
            "asked": 1 if is_alone else num,
            "requests/s": median([each.per_second for each in mine]),
            **{f"{name} us": value for name, value in cpu.items()},
            "cores busy": median([each.machine_s / each.seconds for each in mine]),
            "busiest worker": median([each.busiest for each in mine]),
        })  # fmt: skip
    return found


def workers(
    count: Annotated[int, typer.Option(min=2, help="Workers of the second gateway; the first is one process.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.5, help="Load on each gateway in each round.")] = 3.0,
    connections: Annotated[int, typer.Option(min=1, help="Kept alive, each with one request at a time.")] = 32,
    json_file: JsonFile = None,
) -> None:
    """Requests/s and what they cost: one process, and several that share the port, over scripted lanes."""
    facts = conditions(rounds=rounds, seconds=seconds, connections=connections)
    seen: list[Round] = []
    idle: dict[int, float] = {}
    with ExitStack() as stack:
        lanes = [stack.enter_context(server("direct")) for _ in range(count)]
        urls = [lane.url for lane in lanes]
        gateways = {num: stack.enter_context(served(num, urls)) for num in (1, count)}
        benches = [_Bench(gateway, num, lanes, connections) for num, gateway in gateways.items()]

        async def main() -> None:
            idle.update({num: await bench.idle_ms(_IDLE_S) for num, bench in zip(gateways, benches, strict=True)})
            seen.extend(await measure(benches, rounds, seconds))

        run_async(main())
    num_cores = os.cpu_count() or 1
    notes = [
        "lanes, client and gateways share the machine; the kernel shares out connections, not requests",
        "what a worker does by the second, such as 5 % of its time for look-ups, it does on a shared core too",
    ]
    notes += [f"idle, {num} workers use {ms:.0f} ms of CPU time a second" for num, ms in idle.items()]
    if max(each.client_s / each.seconds for each in seen) > _FULL:
        notes.append("the client used over 90 % of a core: requests/s are a lower bound")
    found = worker_aims(seen, num_cores)
    show({"one process and several": rows(seen), "aims": aim_rows(found)}, notes, facts)
    data = {"conditions": facts, "summary": rows(seen), "aims": aim_rows(found), "seen": [*map(asdict, seen)]}
    write_json(json_file, data)
