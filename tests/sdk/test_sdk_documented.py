"""The public names explain themselves: docstrings with units, errors and examples."""

from __future__ import annotations

import enum
import inspect
import re
from typing import Any

import pytest
from pydantic import BaseModel
from sdk_examples import DOCUMENTED, SDK, example_of, examples, methods

from outrider.errors import OutriderError

#: How a docstring tells of errors, or that there are none.
ERRORS = r"[Rr]aise|Error|errors|ConnectionFailed"


def is_record(thing: Any) -> bool:
    """Fields that are only read: nothing of it can fail."""
    is_data = hasattr(thing, "__dataclass_fields__") or hasattr(thing, "__total__")
    return is_data or (inspect.isclass(thing) and issubclass(thing, BaseModel | enum.Enum | OutriderError))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_is_documented(name: str) -> None:
    """With an example; errors and the parts of a report are shown where they are used."""
    thing = DOCUMENTED[name]
    assert vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    if name not in ("WirePlan", "Observed") and not (inspect.isclass(thing) and issubclass(thing, OutriderError)):
        assert example_of(thing), f"{name} has no example"


def test_examples_show_how_errors_are_caught() -> None:
    """By the two bases, of which one knows what the server said."""
    caught = re.findall(r"except (\w+)", "\n".join(examples().values()))
    assert {"APIError", "OutriderError"} <= set(caught)


@pytest.mark.parametrize("name", dict(methods()))
def test_every_public_method_says_how_it_fails(name: str) -> None:
    """Or that it does not; the ones that talk to a server have an example."""
    function = dict(methods())[name]
    assert re.search(ERRORS, function.__doc__ or ""), f"{name} names no errors"
    if inspect.iscoroutinefunction(function) and function.__name__ not in ("close", "aclose", "result", "call"):
        assert example_of(function), f"{name} has no example"


@pytest.mark.parametrize("name", [name for name, thing in DOCUMENTED.items() if not inspect.isfunction(thing)])
def test_times_have_units_and_classes_say_what_they_raise(name: str) -> None:
    """A name in `_s`, `_at` or `timeout` comes with the word seconds; classes that do something name their errors."""
    source = inspect.getsource(DOCUMENTED[name])
    if re.search(r"^    (?:async def|def|\w+:).*\b\w*(?:_s|_at|timeout)\b\s*[:=]", source, re.MULTILINE):
        assert "second" in source, f"{name} has times without a unit"
    if name in SDK and not is_record(DOCUMENTED[name]):
        assert re.search(ERRORS, DOCUMENTED[name].__doc__ or ""), f"{name} names no errors"
