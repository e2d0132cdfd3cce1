"""The rules of trying again, as pure functions."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConnectionFailed, InternalError
from outrider.sdk.retry import Refusal, retry_delay_s

NOW_S = 1_700_000_000.0


def delay(status: int | None, num_retries: int = 0, chance: float = 0.0, **headers: str) -> float | None:
    error = ConnectionFailed("x") if status is None else InternalError("x")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return retry_delay_s(Refusal(error, status, named), num_retries, now_s=NOW_S, chance=chance)


@pytest.mark.parametrize("status", [None, 408, 409, 429, 500, 502, 503, 599])
def test_what_is_tried_again(status: int | None) -> None:
    """Broken connections, timeouts, conflicts, limits and faults of the server."""
    assert delay(status) == 0.5


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 415, 422])
def test_what_is_not_tried_again(status: int) -> None:
    """The same request would fail the same way."""
    assert delay(status) is None


def test_the_server_has_the_last_word() -> None:
    """`x-should-retry` beats the status, both ways; other values mean nothing."""
    assert delay(400, x_should_retry="true") == 0.5
    assert delay(503, x_should_retry="false") is None
    assert delay(503, x_should_retry="perhaps") == 0.5


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({"retry_after_ms": "250", "retry_after": "9"}, 0.25),
        ({"retry_after_ms": "soon", "retry_after": "9"}, 9.0),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after": "120"}, 120.0),
        ({"retry_after": formatdate(NOW_S + 30, usegmt=True)}, 30.0),
        ({"retry_after": "120.5"}, None),
        ({"retry_after": "1e999"}, None),
        ({"retry_after": "3600", "x_should_retry": "true"}, None),
        ({"retry_after": formatdate(NOW_S + 3600, usegmt=True)}, None),
        ({"retry_after": "0"}, 0.5),
        ({"retry_after": "-3"}, 0.5),
        ({"retry_after": "nan"}, 0.5),
        ({"retry_after": "tomorrow"}, 0.5),
        ({"retry_after": formatdate(NOW_S - 30, usegmt=True)}, 0.5),
    ],
)
def test_the_pause_that_the_server_asks_for(headers: dict[str, str], expected_s: float | None) -> None:
    """Milliseconds, seconds or a date up to two minutes; longer means no retry; nonsense means the back-off."""
    assert delay(503, **headers) == expected_s


def test_the_back_off_doubles_to_eight_seconds() -> None:
    """0.5, 1, 2, 4, 8 and no more, however often."""
    assert [delay(500, n) for n in (0, 1, 2, 3, 4, 5, 5000)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


@given(st.integers(0, 8), st.floats(0, 1, exclude_max=True))
def test_jitter_takes_at_most_a_quarter_off(num_retries: int, chance: float) -> None:
    """Clients that fail together do not come back together, nor later than the back-off."""
    full_s, jittered_s = delay(500, num_retries), delay(500, num_retries, chance)
    assert full_s is not None and jittered_s is not None
    assert 0.75 * full_s <= jittered_s <= full_s
