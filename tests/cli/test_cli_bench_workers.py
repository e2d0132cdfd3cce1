"""What `outrider bench workers` makes of what it saw, and that it sees it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from outrider.cli.bench.served import busy_s, cpu_s, served
from outrider.cli.bench.servers import server
from outrider.cli.bench.workers import Seen, _Bench, rows, worker_aims

ONE = Seen(1, 1000, 1.0, gateway_s=0.5, lanes_s=0.2, client_s=0.1, machine_s=0.9, busiest=1.0)
TWO = Seen(2, 1900, 1.0, gateway_s=1.0, lanes_s=0.4, client_s=0.2, machine_s=1.7, busiest=0.6)


def on_one_core(*seen):
    return [replace(each, is_pinned=True) for each in seen]


def test_the_aims_are_of_the_clock_and_of_processor_time():
    """Ratios within rounds, of them the median: of the clock on any core, of processor time on one."""
    free = [ONE, TWO, replace(TWO, num_done=2000), ONE]
    by_clock, by_cost = worker_aims([*free, *on_one_core(ONE, replace(TWO, gateway_s=1.045))], 8)
    assert (by_clock.figure, by_clock.is_met) == (pytest.approx(1.95), True)
    assert by_cost.figure == pytest.approx(2 / 1.1) and by_cost.is_met


def test_a_full_machine_decides_nothing():
    """Too little with cores to spare is a miss; without, it is not known, and the reason is told."""
    slow = replace(TWO, num_done=1200)
    assert worker_aims([ONE, slow], 8)[0].is_met is False
    by_clock, by_cost = worker_aims([ONE, replace(slow, machine_s=1.95), *on_one_core(ONE, slow)], 2)
    assert by_clock.is_met is None and by_clock.why.startswith("1.95 of 2 cores were busy")
    assert by_cost.is_met is False


def test_on_a_single_core_processor_time_is_not_measured():
    """There is no core for the lanes and the client."""
    assert worker_aims([ONE, TWO], 1)[1].figure is None


def test_more_workers_must_bring_as_much_each():
    """The aim grows with their number."""
    four = replace(TWO, num_workers=4, num_done=3500)
    assert worker_aims([ONE, four], 16)[0].wanted == ">= 3.4"


def test_rows_are_medians_by_number_of_workers():
    """CPU time in microseconds of one request."""
    first, second, third = rows(
        [TWO, ONE, replace(ONE, num_done=2000), replace(ONE, num_done=4000), *on_one_core(TWO)]
    )
    assert (first["workers"], first["requests/s"], first["gateway us"]) == (1, 2000.0, 250.0)
    assert (second["workers"], second["busiest worker"]) == (2, 0.6)
    assert (third["workers"], third["gateway on"]) == (2, "one core")


async def test_two_workers_under_load_are_seen_from_outside():
    """Every request is counted on some worker, and the processor time of all processes is there."""
    before_s = busy_s()
    with server("direct") as lane, served(2, [lane.url]) as gateway:
        cores = os.sched_getaffinity(gateway.pid)
        seen = await _Bench(gateway, 2, [lane], num_connections=16).run(0.5, is_pinned=len(cores) > 1)
        assert cpu_s(gateway.pid) > seen.gateway_s > 0
        assert os.sched_getaffinity(gateway.pid) == os.sched_getaffinity(0) == cores
    assert seen.num_done > 0 and seen.lanes_s > 0
    assert 0.5 <= seen.busiest <= 1.0
    assert 0 < seen.machine_s < busy_s() - before_s
