"""`outrider lanes`: what lanes need before they run, what starts them, and how they are."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import progress_bar, run_async
from outrider.config import Config, SGLangSection, UrlSection, inherited_environment, load_config
from outrider.core import SURFACES

if TYPE_CHECKING:
    from rich.table import Table

    from outrider.app import Gateway

_POLL_S = 0.5
#: Columns of a terminal that has room for a row of a lane.
_WIDE = 140
#: The port that a dry run shows; a launch takes a free one.
_SHOWN_PORT = 30000

ConfigOption = Annotated[Path | None, typer.Option(help="Configuration file; without it, the defaults.")]

app = typer.Typer(help="Prepare and run lanes.", no_args_is_help=True)


@app.callback()
def lanes() -> None:
    """Prepare and run lanes."""


@app.command()
def env() -> None:
    """Build the environment of SGLang lanes on a CPU, once; prints its folder."""
    from outrider.runtimes.sglang_env import ensure

    with progress_bar() as progress:
        folder = ensure(progress)
    typer.echo(folder)


@app.command()
def plan(config: ConfigOption = None) -> None:
    """Print what would be started, with its environment, one command a process; starts nothing."""
    for line in _planned(load_config(config)):
        typer.echo(line)


def _planned(config: Config) -> Iterator[str]:
    from outrider.app import located
    from outrider.runtimes.launch import engine_launch, server_arguments, sglang_launch

    for section in config.lanes:
        if isinstance(section, UrlSection):
            how = "each address of " if section.resolve else ""
            yield f"# {section.name}: nothing to start, {how}{', '.join(section.urls)}"
        elif isinstance(section, SGLangSection):
            launch = sglang_launch(section, _SHOWN_PORT, located, inherited_environment())
            yield f"# {section.name}"
            yield _command(launch.argv, {name: launch.added[name] for name in sorted(launch.added)})
            for rank in range(1, section.parallel.nodes):
                rest = server_arguments(section, _SHOWN_PORT, located, rank=rank)
                yield f"# {section.name}, to be started on machine {rank} by you"
                yield _command(["python", "-m", "sglang.launch_server", *rest], {})
        else:
            yield f"# {section.name}"
            yield _command(engine_launch(section, _SHOWN_PORT).argv, {})


def _command(argv: Any, environment: dict[str, str]) -> str:
    return shlex.join([*(["env"] if environment else []), *(f"{k}={v}" for k, v in environment.items()), *argv])


@app.command()
def up(config: ConfigOption = None) -> None:
    """Start the lanes and look after them, without a gateway before them; shows their states until Ctrl-C."""
    run_async(_live(load_config(config), has_processes=True))


@app.command()
def show(
    config: ConfigOption = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to wait for answers.")] = 10.0,
) -> None:
    """Ask the lanes that somebody else runs what they are, and print it; starts nothing."""
    run_async(_live(load_config(config), has_processes=False, seconds=seconds))


async def _live(config: Config, *, has_processes: bool, seconds: float | None = None) -> None:
    """A table that follows the lanes: until a signal, or for `seconds` at most and no longer than they need. Where it
    cannot follow, as in a file, it is printed again whenever a lane changes its state."""
    from rich.console import Console
    from rich.live import Live

    from outrider.app import looking_after

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    loop = asyncio.get_running_loop()
    ends_at_s = None if seconds is None else loop.time() + seconds
    async with looking_after(config, has_processes=has_processes) as gateway:
        console = Console()
        known: object = None
        with Live(lane_table(gateway, console.width), console=console, refresh_per_second=2) as live:
            while not stop.is_set() and (ends_at_s is None or loop.time() < ends_at_s):
                live.update(lane_table(gateway, console.width))
                states = [(lane["name"], lane["state"], lane["url"]) for lane in gateway.pool.describe()]
                if ends_at_s is None and not console.is_terminal and states != known:
                    console.print(live.get_renderable())
                    known = states
                if ends_at_s is not None and gateway.pool.lanes and all(one.is_ready for one in gateway.pool.lanes):
                    break
                await asyncio.sleep(_POLL_S)
            live.update(lane_table(gateway, console.width))


def lane_table(gateway: Gateway, width: int) -> Table:
    """What is known of each lane now, in a row, or in lines where a row has no room; a question mark is what is not
    known."""
    from rich.table import Table

    names = ("lane", "state", "url", "models", "drafters", "off", "not exact", "requests", "notes")
    table = Table(*names) if width >= _WIDE else Table(show_header=False)
    for lane in _lane_rows(gateway):
        for row in [lane] if width >= _WIDE else zip(names, lane, strict=True):
            table.add_row(*row, end_section=row[0] == names[-1])
    for column in table.columns:
        column.overflow = "fold"  # a URL that is cut helps nobody
    return table


def _lane_rows(gateway: Gateway) -> Iterator[tuple[str, ...]]:
    for lane in gateway.pool.describe():
        able, load = lane["abilities"], lane["load"]
        drafters = "?" if able is None else ", ".join(f"{n} {a}-{b}" for n, (a, b) in able["drafters"].items()) or "-"
        yield (
            lane["name"], lane["state"], lane["url"] or "-", ", ".join(lane["models"]) or "?", drafters,
            "?" if able is None else str(able["can_be_off"]).lower(),
            "?" if able is None else ", ".join(sorted(SURFACES.difference(able["exact_surfaces"]))) or "-",
            "?" if load is None else f"{load['num_running']}+{load['num_waiting']} of {load['max_running']}",
            "; ".join(filter(None, [lane["reason"], *lane["disagreements"]])),
        )  # fmt: skip
