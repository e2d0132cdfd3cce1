from __future__ import annotations

from hashlib import sha256

import pytest

from outrider.config import KeySection
from outrider.dispatch.keys import Key, KeyRing
from outrider.errors import RateLimited, Unauthorized


def section(name="a", secret="secret", **fields):
    return KeySection(name=name, sha256=sha256(secret.encode()).hexdigest(), **fields)


def test_a_key_is_found_by_its_text_only():
    """Neither its name nor its hash opens anything."""
    ring = KeyRing([section("a", "one"), section("b", "two")])
    assert ring.find("two").section.name == "b"
    for wrong in (None, "", "a", "One", "\udce4", section("a", "one").sha256):
        with pytest.raises(Unauthorized):
            ring.find(wrong)


class Hash(str):
    """Notices a comparison whose time tells how much of it was right."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other):
        raise AssertionError("a hash was compared character by character")


def test_hashes_are_compared_in_constant_time():
    """The one that fits, and those that do not."""
    sections = [section(name, name).model_copy(update={"sha256": Hash(section(name, name).sha256)}) for name in "abc"]
    assert KeyRing(sections).find("b").section.name == "b"


def test_requests_per_minute_refill():
    """A burst up to the limit, then one per its share of the minute; the refusal says when."""
    key = Key(section(requests_per_min=2), 0.0)
    for _ in range(2):
        key.enter(0.0)
    with pytest.raises(RateLimited) as caught:
        key.enter(15.0)
    assert caught.value.retry_after_s == pytest.approx(15.0)
    key.enter(30.0)


def test_tokens_are_charged_when_known_and_paid_off():
    """A request may overdraw; the next one waits until the debt is paid."""
    key = Key(section(tokens_per_min=60), 0.0)
    key.enter(0.0)
    key.leave(70, 0.0)
    with pytest.raises(RateLimited) as caught:
        key.enter(1.0)
    assert caught.value.retry_after_s == pytest.approx(10.0)
    key.enter(11.5)


def test_requests_at_one_time_are_bounded():
    """A place is free again as soon as one ends."""
    key = Key(section(max_concurrent=1), 0.0)
    key.enter(0.0)
    with pytest.raises(RateLimited):
        key.enter(0.0)
    assert key.num_running == 1
    key.leave(5, 0.0)
    key.enter(0.0)


def test_a_refused_request_uses_nothing_up():
    """Neither a request nor a place is counted when the tokens are gone."""
    key = Key(section(requests_per_min=5, tokens_per_min=1), 0.0)
    key.enter(0.0)
    key.leave(10, 0.0)
    with pytest.raises(RateLimited):
        key.enter(0.0)
    assert key.num_running == 0
    assert key.headers()["x-ratelimit-remaining-requests"] == "4"


def test_a_request_that_was_never_sent_is_given_back():
    """Its place and its count, but not more than the limit."""
    key = Key(section(requests_per_min=2), 0.0)
    key.enter(0.0)
    key.give_back(0.0)
    assert (key.num_running, key.headers()["x-ratelimit-remaining-requests"]) == (0, "2")
    key.enter(0.0)
    key.give_back(60.0)
    assert key.headers()["x-ratelimit-remaining-requests"] == "2"


def test_headers_say_limit_rest_and_reset():
    """Of the limits that the key has, and of no others."""
    key = Key(section(requests_per_min=60), 0.0)
    key.enter(0.0)
    assert key.headers() == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1.000s",
    }
    assert Key(section(), 0.0).headers() == {}


def test_a_reload_keeps_what_is_used_of_unchanged_keys():
    """New keys work, removed ones do not, and nobody gets a fresh limit by a reload."""
    same, gone = section("a", "one", requests_per_min=1), section("b", "two")
    ring = KeyRing([same, gone])
    ring.find("one").enter(0.0)
    ring.replace([same, section("c", "three")], 1.0)
    with pytest.raises(RateLimited):
        ring.find("one").enter(1.0)
    assert ring.find("three").section.name == "c"
    with pytest.raises(Unauthorized):
        ring.find("two")


def test_a_reload_keeps_what_is_used_of_changed_keys():
    """Whose limits or text are others now: requests that run still count, and end; what is used up stays so."""
    ring = KeyRing([section("a", "one", requests_per_min=2, max_concurrent=2)])
    before = ring.find("one")
    for _ in range(2):
        before.enter(0.0)
    ring.replace([section("a", "new", requests_per_min=60, max_concurrent=3, tokens_per_min=100)], 0.0)
    after = ring.find("new")
    assert (after.num_running, after.section.max_concurrent) == (2, 3)
    assert after.headers()["x-ratelimit-remaining-requests"] == "58"
    after.enter(1.0)
    with pytest.raises(RateLimited, match="3 requests of this key"):
        after.enter(2.0)
    before.leave(100, 2.0)
    assert after.num_running == 2 and after.headers()["x-ratelimit-remaining-tokens"] == "0"
    ring.replace([section("a", "new", requests_per_min=1)], 1.0)
    assert ring.find("new").headers()["x-ratelimit-limit-requests"] == "1"
    with pytest.raises(RateLimited, match="1 requests per minute"):
        after.enter(1.0)
    assert "x-ratelimit-limit-tokens" not in after.headers()
