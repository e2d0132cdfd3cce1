"""The examples of the public docstrings, each as a function of what it uses without making it."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import outrider

#: Type aliases and the version have no docstring of their own to carry.
PLAIN = {"AgentEvent", "Phase", "StreamEvent", "__version__"}
DOCUMENTED = {name: getattr(outrider, name) for name in outrider.__all__ if name not in PLAIN}
SDK = {name: thing for name, thing in DOCUMENTED.items() if thing.__module__.startswith("outrider.sdk")}
#: What the functions below need.
HEAD = "import json\nfrom collections.abc import Awaitable, Callable\nfrom outrider import *\n\n"
GIVEN = {
    "client": "AsyncClient", "stream": "ChatStream", "event": "StreamEvent", "result": "ChatResult",
    "response": "Response", "run": "Run", "agent": "Agent[str]", "session": "Session", "usage": "Usage",
    "call": "ToolCall", "report": "Report", "add": "Callable[[int, int], Awaitable[int]]",
    "read_file": "Callable[[str], Awaitable[str]]",
}  # fmt: skip
#: By module; what differs there.
OTHERS = {
    "blocking": {"client": "Client"},
    "waiting": {"client": "Client", "stream": "BlockingStream[StreamEvent, ChatResult]"},
    "turn": {"result": "AgentResult[str]"},
    "tool": {"result": "AgentResult[str]"},
    "wire": {"stream": "ResponseStream"},
}


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


def example_of(thing: Any) -> str | None:
    """The indented block behind `Example::`."""
    _, found, block = inspect.cleandoc(thing.__doc__ or "").partition("Example::\n\n")
    lines = block.splitlines() if found else []
    end = next((i for i, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return textwrap.dedent("\n".join(lines[:end])).rstrip() if end else None


def examples() -> dict[str, str]:
    things = {**DOCUMENTED, **dict(methods())}
    return {name: code for name, thing in things.items() if (code := example_of(thing))}


def given(name: str, code: str) -> dict[str, str]:
    """What the example uses and does not make, with its types."""
    module = getattr(DOCUMENTED[name.split(".")[0]], "__module__", "").rsplit(".", 1)[-1]
    types = GIVEN | OTHERS.get(module, {})
    nodes = list(ast.walk(ast.parse(code)))
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    made = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    made |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    made |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    made |= {n.name for n in nodes if isinstance(n, ast.ExceptHandler) and n.name}
    return {one: types[one] for one in sorted(used - made - set(dir(builtins)) - set(outrider.__all__) - {"json"})}


def is_blocking(name: str) -> bool:
    """Whether it is of the client for programs without an event loop."""
    return name.split(".")[0] in ("Client", "BlockingResponses", "BlockingRuns", "BlockingStream")


def as_function(name: str, code: str) -> str:
    parameters = ", ".join(f"{one}: {kind}" for one, kind in given(name, code).items())
    start = "def" if is_blocking(name) else "async def"
    return f"{start} {name.replace('.', '_')}_example({parameters}) -> None:\n{textwrap.indent(code, '    ')}\n"
