"""`outrider train`: heads that draft for the embedded engine's target."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import progress_bar
from outrider.config import DEFAULT_MODEL, cache_dir
from outrider.training import Kind


def train(  # noqa: PLR0913 - one parameter per flag
    kind: Annotated[Kind, typer.Argument(help="EAGLE drafts as eagle2, EAGLE-3 as eagle3, Medusa as medusa.")],
    out: Annotated[Path, typer.Option(help="Folder of the head; its run is kept there, too.")],
    model: Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")] = DEFAULT_MODEL,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of texts and states, which heads of one model share; default: in the cache."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="For all of it; on a CPU, training counts only those it has the cores.")
    ] = 90.0,
    num_tokens: Annotated[int, typer.Option(min=256, help="Tokens of texts at most.")] = 400_000,
    draft_vocab: Annotated[int, typer.Option(min=16, help="Tokens that the head can draft.")] = 8192,
    begin_with: Annotated[
        Path | None, typer.Option(help="Folder of a head to train further, as with more texts than it has seen.")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="Natural text to learn from first: file or folder.")] = None,
) -> None:
    """Train heads that draft for a model; a killed run goes on when it is started again."""
    from outrider.engine.pull import locate
    from outrider.training.job import Job, run

    folder = locate(model, cache_dir())
    job = Job(
        kind=kind,
        model=folder,
        out=out,
        data=data or cache_dir() / "training" / folder.name,
        minutes=minutes,
        num_tokens=num_tokens,
        draft_vocab=draft_vocab,
        text=text,
        begin_with=begin_with,
        command=shlex.join(["outrider", *sys.argv[1:]]),
    )
    with progress_bar() as progress:
        trained = run(job, progress)
    for (step, loss), (_, rates) in zip(trained.state.losses, trained.state.agreements, strict=True):
        shown = " ".join(f"{rate:.3f}" for rate in rates)
        typer.echo(f"step {step:6d}  loss {loss:7.4f}  agreement by depth {shown}")
    scores = trained.scores
    typer.echo(
        f"held out, {scores.num_tokens} tokens: "
        + ", ".join(f"accept length at k=4 and T {t} {scores.accept_length(t, 4):.2f}" for t in scores.overlap)
    )
    typer.echo(f"written to {out}")
