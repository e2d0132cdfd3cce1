"""What commands share: running a coroutine on the fast loop, the log, and progress of long work."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import typer

from outrider.errors import ConfigError

#: New objects before the young are looked at, and how often those before the older and before all.
_COLLECT = (5_000, 10, 20)


def run_async(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end on uvloop where it exists; Ctrl-C ends quietly with the usual status.

    With as many open files as the system allows, since each relayed stream has two sockets, and with rarer
    collections of garbage, since each looks at everything that a thousand streams hold.
    """
    _allow_files()
    gc.set_threshold(*_COLLECT)
    try:
        if sys.platform == "win32":
            import asyncio

            asyncio.run(main)
        else:
            import uvloop

            uvloop.run(main)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def set_up_logging(*, verbose: bool, access_log: bool, worker: int | None = None) -> None:
    """Of a gateway, on standard error; lines of one of several processes say which."""
    who = "" if worker is None else f"worker {worker} "
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format=f"%(asctime)s %(levelname)s {who}%(name)s %(message)s",
    )
    if access_log:
        logging.getLogger("outrider.access").setLevel(logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def refuse(given: Mapping[str, object], why: str) -> None:
    """ConfigError names the options that were given and would be ignored, and says why."""
    if unused := [name for name, value in given.items() if value is not None]:
        raise ConfigError(f"{', '.join(unused)}: {why}")


def _allow_files() -> None:
    if sys.platform != "win32":
        import resource

        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):  # some systems name a limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error; the function it gives takes what is being done and a fraction in [0, 1]."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<40}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, fraction: bar.update(task, description=what, completed=fraction)
