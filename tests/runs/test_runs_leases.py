"""Leases between processes, on a clock that the test moves."""

from __future__ import annotations

from outrider.runs.leases import Leases


def test_who_does_not_change_for_a_lease_is_silent():
    """Whatever time it says; who comes back is watched anew."""
    leases = Leases(10.0)
    assert leases.silent({"a": 1.0, "b": 9e9}, 100.0) == []
    assert leases.silent({"a": 2.0, "b": 9e9}, 109.0) == []
    assert leases.silent({"a": -5.0, "b": 9e9}, 110.0) == ["b"]
    assert leases.silent({"a": -5.0}, 119.9) == []
    assert leases.silent({"a": -5.0, "b": 9e9}, 120.0) == ["a"]
