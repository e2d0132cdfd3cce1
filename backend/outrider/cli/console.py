"""What commands share: running a coroutine on the fast loop, and progress of long work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import typer


def run_async(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end on uvloop where it exists; Ctrl-C ends quietly with the usual status."""
    try:
        if sys.platform == "win32":
            import asyncio

            asyncio.run(main)
        else:
            import uvloop

            uvloop.run(main)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error; the function it gives takes what is being done and a fraction in [0, 1]."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<40}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, fraction: bar.update(task, description=what, completed=fraction)
