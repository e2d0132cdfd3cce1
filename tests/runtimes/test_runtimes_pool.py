from __future__ import annotations

import pytest

from outrider.errors import InvalidRequest, LaneUnavailable, ModelNotFound
from outrider.runtimes.lane import Lane, ModelCard
from outrider.runtimes.pool import Pool


def lane(name, *models, in_flight=0):
    one = Lane(name, f"http://{name}")
    if models:
        one.becomes_ready([ModelCard(model, {"id": model, "from": name}) for model in models])
    one.num_in_flight = in_flight
    return one


def test_the_ready_lane_with_the_fewest_requests_is_taken():
    """The first of equals."""
    a, b, c = lane("a", "m", in_flight=2), lane("b", "m", in_flight=1), lane("c", "m", in_flight=1)
    assert Pool([a, b, c]).resolve("m") is b
    b.fails("x")
    assert Pool([a, b, c]).resolve("m") is c


def test_only_lanes_that_serve_the_model_count():
    """However busy they are."""
    a, b = lane("a", "m", in_flight=9), lane("b", "n")
    assert Pool([a, b]).resolve("m") is a


def test_no_ready_lane_is_unavailable_with_the_states():
    """The message says what each lane does."""
    a = lane("a", "m")
    a.fails("x")
    with pytest.raises(LaneUnavailable, match="a is failed") as caught:
        Pool([a]).resolve("m")
    assert caught.value.retry_after_s
    assert not Pool([a]).is_ready


def test_a_model_that_no_lane_serves_is_not_found():
    """The message lists what is served."""
    with pytest.raises(ModelNotFound, match="served: m") as caught:
        Pool([lane("a", "m")]).resolve("x")
    assert caught.value.param == "model"


def test_while_models_are_unknown_nothing_is_not_found():
    """A lane that is still starting may serve it."""
    with pytest.raises(LaneUnavailable):
        Pool([lane("a", "m"), lane("b")]).resolve("x")
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
