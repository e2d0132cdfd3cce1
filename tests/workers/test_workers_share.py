"""Shares of limits: none is exceeded, none is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config import AdmissionSection, Config, KeySection, RunsSection
from outrider.errors import ConfigError
from outrider.workers.share import ALONE, Share

DIGEST = "0" * 64


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_shares_add_up_to_the_limit_and_differ_by_one_at_most(limit, count):
    """Whatever the numbers are."""
    shares = [Share(index, count).of(limit) for index in range(count)]
    assert sum(shares) == limit and max(shares) - min(shares) <= 1


def test_a_configuration_is_shared_out():
    """Places, queue and open runs; a queue may be shorter than there are workers, and the rest is everybody's."""
    config = Config(admission=AdmissionSection(max_in_flight=7, max_queued=1), runs=RunsSection(max_open=5))
    shares = [Share(index, 2).of_config(config) for index in (0, 1)]
    assert [one.admission.max_in_flight for one in shares] == [4, 3]
    assert [one.admission.max_queued for one in shares] == [1, 0]
    assert [one.runs.max_open for one in shares] == [3, 2]
    assert {one.admission.queue_timeout_s for one in shares} == {config.admission.queue_timeout_s}


def test_keys_are_shared_out():
    """Each limit that a key has; what is off stays off."""
    key = KeySection(name="a", sha256=DIGEST, requests_per_min=5, tokens_per_min=100)
    (first,), (second,) = (Share(index, 2).of_keys([key]) for index in (0, 1))
    assert (first.requests_per_min, second.requests_per_min) == (3, 2)
    assert (first.tokens_per_min, second.tokens_per_min) == (50, 50)
    assert first.max_concurrent is None and first.name == "a"


@pytest.mark.parametrize("name", ["requests_per_min", "tokens_per_min", "max_concurrent"])
def test_a_limit_of_which_a_worker_would_have_nothing_is_refused(name):
    """By the names of limit and key: with one for each worker the sum would exceed it."""
    key = KeySection(name="a", sha256=DIGEST, **{name: 2})
    with pytest.raises(ConfigError, match=f"{name} of the key a is 2, of which 3 workers cannot each have a share"):
        Share(0, 3).of_keys([key])


def test_places_of_which_a_worker_would_have_nothing_are_refused():
    """And open runs."""
    with pytest.raises(ConfigError, match=r"admission\.max_in_flight is 1"):
        Share(0, 2).of_config(Config(admission=AdmissionSection(max_in_flight=1)))
    with pytest.raises(ConfigError, match=r"runs\.max_open is 1"):
        Share(0, 2).of_config(Config(runs=RunsSection(max_open=1)))


def test_a_single_process_has_all():
    """Nothing changes."""
    config, key = Config(), KeySection(name="a", sha256=DIGEST, max_concurrent=1)
    assert ALONE.of_config(config) == config and ALONE.of_keys([key]) == (key,)
