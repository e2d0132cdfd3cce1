"""The command line's root: one module per command."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.cli import bench, lanes, model, policy
from outrider.cli.demo import demo
from outrider.cli.doctor import doctor
from outrider.cli.engine import engine
from outrider.cli.profile import profile
from outrider.cli.serve import serve
from outrider.cli.speedup import speedup
from outrider.cli.train import train
from outrider.version import __version__

app = typer.Typer(
    name="outrider",
    help="Decides, for every request, how to speculate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(demo)
app.command()(doctor)
app.command()(engine)
app.command()(profile)
app.command()(train)
app.command()(speedup)
app.add_typer(bench.app, name="bench")
app.add_typer(policy.app, name="policy")
app.add_typer(model.app, name="model")
app.add_typer(lanes.app, name="lanes")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that come before a command."""
