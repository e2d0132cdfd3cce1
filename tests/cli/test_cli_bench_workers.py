"""What `outrider bench workers` makes of what it saw, and that it sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.cli.bench.served import busy_s, cpu_s, served
from outrider.cli.bench.servers import server
from outrider.cli.bench.workers import Round, _Bench, rows, worker_aims

ONE = Round(1, 1000, 1.0, gateway_s=0.5, lanes_s=0.2, client_s=0.1, machine_s=0.9, busiest=1.0)
TWO = Round(2, 1900, 1.0, gateway_s=1.0, lanes_s=0.4, client_s=0.2, machine_s=1.7, busiest=0.6)


def asked_alone(*seen):
    return [replace(each, is_alone=True) for each in seen]


def test_the_aims_are_of_the_clock_and_of_processor_time():
    """Ratios within rounds, of them the median: of all workers by the clock, of one by processor time."""
    free = [ONE, TWO, replace(TWO, num_done=2000), ONE]
    by_clock, by_cost = worker_aims([*free, *asked_alone(ONE, replace(TWO, gateway_s=1.045))], 8)
    assert (by_clock.figure, by_clock.is_met) == (pytest.approx(1.95), True)
    assert by_cost.figure == pytest.approx(2 / 1.1) and by_cost.is_met


def test_a_full_machine_decides_nothing():
    """Too little with cores to spare is a miss; without, it is not known, and the reason is told."""
    slow = replace(TWO, num_done=1200)
    assert worker_aims([ONE, slow], 8)[0].is_met is False
    by_clock, by_cost = worker_aims([ONE, replace(slow, machine_s=1.95), *asked_alone(ONE, slow)], 2)
    assert by_clock.is_met is None
    # One: 1000 in 0.5 s, two: 1200 in (1.0 + 0.4 + 0.2) / 2 s.
    assert by_clock.why.startswith("cores are the limit") and by_clock.why.endswith("they allow 0.75 at most")
    assert by_cost.is_met is False


def test_more_workers_must_bring_as_much_each():
    """The aim grows with their number."""
    four = replace(TWO, num_workers=4, num_done=3500)
    assert worker_aims([ONE, four], 16)[0].wanted == ">= 3.4"


def test_rows_are_medians_by_number_of_workers():
    """CPU time in microseconds of one request."""
    first, second, third = rows(
        [TWO, ONE, replace(ONE, num_done=2000), replace(ONE, num_done=4000), *asked_alone(TWO)]
    )
    assert (first["workers"], first["requests/s"], first["gateway us"]) == (1, 2000.0, 250.0)
    assert (second["workers"], second["busiest worker"]) == (2, 0.6)
    assert (third["workers"], third["asked"], second["asked"]) == (2, 1, 2)


async def test_two_workers_under_load_are_seen_from_outside():
    """Every request is counted on some worker, and the processor time of all processes is there."""
    before_s = busy_s()
    with server("direct") as lane, served(2, [lane.url]) as gateway:
        bench = _Bench(gateway, 2, [lane], num_connections=16)
        seen = await bench.run(0.5)
        alone = await bench.run(0.2, is_alone=True)
        assert cpu_s(gateway.pid) > seen.gateway_s > 0
    assert seen.num_done > 0 and seen.lanes_s > 0
    assert 0.5 <= seen.busiest < 1.0 == alone.busiest
    assert 0 < seen.machine_s < busy_s() - before_s
