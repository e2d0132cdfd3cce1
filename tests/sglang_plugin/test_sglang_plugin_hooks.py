"""Features go in as a whole or not at all, and what is missing is said."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable

import pytest

from outrider.sglang_plugin.hooks import Feature, Hook, Installed


def fine(*args: object) -> None:
    """A hook's function."""


@pytest.mark.parametrize(
    ("hook", "named"),
    [
        (Hook("json.nowhere.dumps", "after", fine), "json.nowhere.dumps is not there"),
        (Hook("json.moved", "after", fine), "json.moved is not there"),
        (Hook("json.dumps", "after", fine, ("obj", "renamed")), "json.dumps takes no renamed"),
        (Hook("json.__doc__", "replace", fine), "json.__doc__ is not a function"),
        (Hook("json.JSONEncoder", "exists", None, ("skipkeys", "width")), "json.JSONEncoder takes no width"),
    ],
)
def test_a_target_that_moved_is_named(hook: Hook, named: str) -> None:
    """Before anything is put in."""
    assert named in (hook.problem() or "")


def test_what_is_as_expected_is_no_problem() -> None:
    """Functions, methods and classes with the parameters that are used, and names of modules."""
    assert Hook("json.dumps", "before", fine, ("obj", "cls")).problem() is None
    assert Hook("json.JSONEncoder.encode", "after", fine, ("o",)).problem() is None
    assert Hook("json.JSONEncoder", "exists", None, ("indent",)).problem() is None
    assert Hook("json.__doc__", "assign", fine).problem() is None


def wrapped(function: Callable[..., object], hook: Callable[..., object]) -> Callable[..., object]:
    """As SGLang's registry does it."""

    @functools.wraps(function)
    def wrapper(*args: object) -> object:
        return hook(function(*args), *args)

    return wrapper


def test_a_hook_that_sglang_did_not_apply_is_told_from_one_that_it_did() -> None:
    """Also where SGLang has wrapped the function by itself, and below hooks of others."""
    place = types.SimpleNamespace(stock=wrapped(lambda: 1, print), ours=wrapped(wrapped(lambda: 1, fine), print))
    name = "another_module_of_this_test"
    sys.modules[name] = place  # type: ignore[assignment]
    try:
        assert not Hook(f"{name}.stock", "after", fine).is_in()
        assert Hook(f"{name}.ours", "after", fine).is_in()
    finally:
        del sys.modules[name]


def test_a_feature_goes_in_whole_or_not_at_all(caplog: pytest.LogCaptureFixture) -> None:
    """One bad hook keeps the good ones of its feature out, and what is not really there is not reported."""
    place = types.SimpleNamespace(first=None, second=None)
    name = "a_module_of_this_test"
    sys.modules[name] = place  # type: ignore[assignment]
    try:
        installed = Installed()
        hooks = (Hook(f"{name}.first", "assign", fine), Hook(f"{name}.gone", "assign", fine))
        half = Feature(("half", "also"), hooks)
        whole = Feature(("whole",), (Hook(f"{name}.second", "assign", fine),))
        idle = Feature(("idle",), (), unused=lambda: "nothing to do")
        installed.install([half, whole, idle])
        report = installed.report()
        place.second = None
        later = installed.report()
    finally:
        del sys.modules[name]
    assert place.first is None
    assert report["active"] == ["whole"]
    assert set(report["missing"]) == {"half", "also"}
    assert "gone is not there" in report["missing"]["half"]
    assert report["unused"] == {"idle": "nothing to do"}
    assert (later["active"], set(later["missing"])) == ([], {"half", "also", "whole"})
    assert later["missing"]["whole"] == f"SGLang did not apply the hooks on {name}.second"
    assert "half, also" in caplog.text
