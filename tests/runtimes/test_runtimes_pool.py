from __future__ import annotations

import pytest

from outrider.errors import InvalidRequest, LaneUnavailable, ModelNotFound, RouteNotFound
from outrider.runtimes.abilities import Abilities
from outrider.runtimes.lane import Lane, ModelCard
from outrider.runtimes.pool import Pool


def lane(name, *models, in_flight=0):
    one = Lane(name, f"http://{name}")
    if models:
        one.becomes_ready([ModelCard(model, {"id": model, "from": name}) for model in models])
    one.num_in_flight = in_flight
    return one


def test_a_group_is_the_ready_lanes_of_a_model():
    """However busy they are; a lane that failed is out of it."""
    a, b, c = lane("a", "m", in_flight=9), lane("b", "m", "n"), lane("c", "n")
    pool = Pool([a, b, c])
    assert (pool.ready("m"), pool.ready("n")) == ([a, b], [b, c])
    b.fails("x")
    assert (pool.ready("m"), pool.ready("n")) == ([a], [c])


def test_lanes_come_and_go():
    """A lane that is added takes requests, one that is removed does not."""
    a, b = lane("a", "m"), lane("b", "m")
    pool = Pool([a])
    pool.add(b)
    assert pool.ready("m") == [a, b]
    pool.remove(a)
    assert pool.ready("m") == [b]
    assert [entry["name"] for entry in pool.describe()] == ["b"]


def test_lanes_that_become_ready_are_told_of():
    """At first and again, with what they run then; one that was removed is not."""
    a, b, told = Lane("a", "http://a"), Lane("b", "http://b"), []
    pool = Pool([a])
    pool.add(b)
    pool.on_ready = lambda one: told.append(one.runs)
    card = ModelCard("m", {"id": "m"})
    a.becomes_ready([card])
    a.fails("x")
    a.starts("http://a")
    a.becomes_ready([card], Abilities(model="weights", version="2"))
    pool.remove(b)
    b.becomes_ready([card])
    assert told == ["m on an unknown build", "weights on 2"]


def test_no_ready_lane_is_unavailable_with_the_states():
    """The message says what each lane does."""
    a = lane("a", "m")
    a.fails("x")
    with pytest.raises(LaneUnavailable, match="a is failed") as caught:
        Pool([a]).ready("m")
    assert caught.value.retry_after_s
    assert not Pool([a]).is_ready


def test_a_model_that_no_lane_serves_is_not_found():
    """The message lists what is served."""
    with pytest.raises(ModelNotFound, match="served: m") as caught:
        Pool([lane("a", "m")]).ready("x")
    assert caught.value.param == "model"


def test_while_models_are_unknown_nothing_is_not_found():
    """A lane that is still starting may serve it."""
    with pytest.raises(LaneUnavailable):
        Pool([lane("a", "m"), lane("b")]).ready("x")
    with pytest.raises(LaneUnavailable):
        Pool([lane("b")]).models()


def test_no_name_means_the_only_model():
    """And is ambiguous when there are two."""
    assert Pool([lane("a", "m"), lane("b", "m")]).card(None).id == "m"
    with pytest.raises(InvalidRequest, match="m, n") as caught:
        Pool([lane("a", "m"), lane("b", "n")]).card(None)
    assert caught.value.param == "model"


def test_models_are_listed_once_with_the_first_lanes_entry():
    """Two lanes with one model are one model."""
    cards = Pool([lane("a", "m", "n"), lane("b", "n", "o")]).models()
    assert [(card.id, card.fields["from"]) for card in cards] == [("m", "a"), ("n", "a"), ("o", "b")]


def test_a_lane_that_is_spared_stays_so_when_it_goes_and_comes_back():
    """By its name, until an operator says otherwise."""
    pool = Pool([a := lane("a", "m")], drained=["b"])
    pool.drain("a", is_draining=True)
    pool.remove(a)
    for name in ("a", "b"):
        pool.add(lane(name, "m"))
    assert [one.is_draining for one in pool.lanes] == [True, True]
    pool.drain("b", is_draining=False)
    assert not pool.named("b").is_draining
    with pytest.raises(RouteNotFound):
        pool.drain("c", is_draining=True)
