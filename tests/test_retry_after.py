"""The pause that a server's headers ask for."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from outrider.retry_after import retry_after_s

NOW_S = 1_700_000_000.0


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({}, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": formatdate(NOW_S + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW_S - 30, usegmt=True)}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "tomorrow"}, None),
    ],
)
def test_milliseconds_come_before_seconds_and_a_date(headers: dict[str, str], expected_s: float | None) -> None:
    """What is no pause, or none that lies ahead, is none."""
    assert retry_after_s(headers, now_s=NOW_S) == expected_s
