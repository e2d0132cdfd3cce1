"""`outrider model`: fetch a model from the catalogue, and say where it is."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.cli.console import progress_bar
from outrider.config import DEFAULT_MODEL, cache_dir, packaged_data

app = typer.Typer(help="Fetch models for the embedded engine.", no_args_is_help=True)


@app.command()
def pull(name: Annotated[str, typer.Argument(help="Name in the catalogue.")] = DEFAULT_MODEL) -> None:
    """Download, check and convert a model, once; prints its folder."""
    from outrider.engine.pull import pull as pull_model

    with progress_bar() as progress:
        folder = pull_model(name, cache_dir(), progress)
    typer.echo(folder)


@app.command("list")
def list_models() -> None:
    """Print the catalogue, where each model is, and the heads that come with Outrider for it."""
    from outrider.engine.pull import CATALOG
    from outrider.engine.shipped import shipped_heads

    for name, source in CATALOG.items():
        folder = source.folder(cache_dir())
        typer.echo(f"{name}\t{source.requirement}\t{folder if folder.is_dir() else 'not pulled'}")
        for head in shipped_heads(source.folder(cache_dir()), packaged_data("heads")):
            typer.echo(f"  {head.kind}\t{head.folder}\t{head.summary}")
