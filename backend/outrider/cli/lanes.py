"""`outrider lanes`: what lanes need before they run."""

from __future__ import annotations

import typer

from outrider.cli.console import progress_bar

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
