"""The public names explain themselves: docstrings with units, errors and examples, and examples that type-check."""

from __future__ import annotations

import ast
import builtins
import enum
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import outrider
from outrider.errors import OutriderError

ROOT = Path(__file__).parents[2]
#: Type aliases and the version have no docstring of their own to carry.
PLAIN = {"StreamEvent", "Phase", "__version__"}
DOCUMENTED = {name: getattr(outrider, name) for name in outrider.__all__ if name not in PLAIN}
SDK = {name: thing for name, thing in DOCUMENTED.items() if thing.__module__.startswith("outrider.sdk")}
#: How a docstring tells of errors, or that there are none.
ERRORS = r"[Rr]aise|Error|errors|ConnectionFailed"
#: What examples use without making it.
GIVEN = {
    "client": "AsyncClient", "stream": "ChatStream", "event": "StreamEvent", "result": "ChatResult",
    "response": "Response", "run": "Run", "agent": "Agent[str]", "session": "Session", "usage": "Usage",
    "call": "ToolCall", "report": "Report", "situation": "Situation", "add": "Callable[..., Awaitable[int]]",
    "read_file": "Callable[..., Awaitable[str]]",
}  # fmt: skip
BLOCKING = {"client": "Client", "stream": "BlockingStream"}
OF_AGENTS = {"result": "AgentResult[str]"}


def methods() -> Iterator[tuple[str, Any]]:
    """Public functions of the public classes, and public functions."""
    for name, thing in SDK.items():
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing):
            for own, member in vars(thing).items():
                function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                if inspect.isfunction(function) and not own.startswith("_") and own != "read":
                    yield f"{name}.{own}", function


def is_record(thing: Any) -> bool:
    """Fields that are only read: nothing of it can fail."""
    is_data = hasattr(thing, "__dataclass_fields__") or hasattr(thing, "__total__")
    return is_data or (inspect.isclass(thing) and issubclass(thing, BaseModel | enum.Enum | OutriderError))


def example_of(thing: Any) -> str | None:
    """The indented block behind `Example::`."""
    _, found, block = inspect.cleandoc(thing.__doc__ or "").partition("Example::\n\n")
    lines = indented(block.splitlines()) if found else []
    return textwrap.dedent("\n".join(lines)) if lines else None


def indented(lines: list[str]) -> list[str]:
    end = next((i for i, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return lines[:end]


def examples() -> dict[str, str]:
    things = {**DOCUMENTED, **dict(methods())}
    return {name: code for name, thing in things.items() if (code := example_of(thing))}


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


def free_names(code: str) -> set[str]:
    """Names that a block uses and does not make."""
    nodes = list(ast.walk(ast.parse(code)))
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    made = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    made |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    made |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    made |= {n.name for n in nodes if isinstance(n, ast.ExceptHandler) and n.name}
    return used - made - set(dir(builtins)) - set(outrider.__all__)


def as_function(number: int, name: str, code: str) -> str:
    """The block in a function whose parameters are what it uses."""
    thing = DOCUMENTED.get(name.split(".")[0])
    module = getattr(thing, "__module__", "")
    types = GIVEN | (BLOCKING if module.endswith("blocking") else {})
    types |= OF_AGENTS if module.endswith(("agent", "tool")) else {}
    given = ", ".join(f"{one}: {types[one]}" for one in sorted(free_names(code) - {"json"}))
    return f"async def example_{number}({given}) -> None:  # {name}\n{textwrap.indent(code, '    ')}\n"


def test_examples_type_check(tmp_path: Path) -> None:
    """All of them, by mypy in its strict mode."""
    blocks = examples()
    assert len(blocks) > 50
    head = "import json\nfrom collections.abc import Awaitable, Callable\nfrom outrider import *\n\n"
    file = tmp_path / "examples.py"
    file.write_text(head + "\n".join(as_function(i, *block) for i, block in enumerate(blocks.items())))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir",
         str(tmp_path / "cache"), "--follow-imports", "silent", str(file)],
        capture_output=True, text=True, check=False, cwd=ROOT, env={"MYPYPATH": str(ROOT / "backend"), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
