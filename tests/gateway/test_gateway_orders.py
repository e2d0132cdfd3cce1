"""What an operator asks of every process of a gateway."""

from __future__ import annotations

from outrider.gateway.orders import Orders
from outrider.runtimes.lane import Lane
from outrider.runtimes.pool import Pool
from outrider.telemetry.metrics import Metrics


def orders(problem=None, looks=None):
    looks = [] if looks is None else looks
    return Orders(Pool([Lane("a")]), Metrics(), lambda: problem, lambda: looks.append(1))


async def test_a_single_process_carries_out_what_it_is_asked():
    """Its answer is the only one."""
    (answer,) = await orders().here("page", {})
    assert 'outrider_lane_state{lane="a",state="starting"} 1.0' in answer["page"]


def test_a_reload_says_what_is_wrong():
    """None when nothing is."""
    assert orders().carry_out("reload", {}) == {"problem": None}
    assert orders("x.yaml:1").carry_out("reload", {}) == {"problem": "x.yaml:1"}


def test_a_lane_is_spared_by_name():
    """One that this process has not yet is spared when it comes."""
    given = orders()
    assert given.carry_out("drain", {"lane": "a", "is_draining": True}) == {}
    assert given.pool.lanes[0].is_draining
    assert given.carry_out("drain", {"lane": "b", "is_draining": True}) == {}
    given.pool.add(Lane("b"))
    assert given.pool.named("b").is_draining


def test_runs_are_looked_at_now():
    """Another process has been asked to cancel one of ours."""
    looks = []
    assert orders(looks=looks).carry_out("look", {}) == {} and looks == [1]


def test_an_unknown_order_is_a_problem():
    """It is not silently done."""
    assert orders().carry_out("dance", {}) == {"problem": "there is no order dance"}
