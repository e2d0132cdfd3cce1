"""`outrider train`: heads that draft for the embedded engine's target."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.console import progress_bar
from outrider.config import DEFAULT_MODEL, cache_dir

if TYPE_CHECKING:
    from outrider.training.job import Kind

app = typer.Typer(help="Train heads that draft; a killed run goes on when it is started again.", no_args_is_help=True)

Model = Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")]
Out = Annotated[Path, typer.Option(help="Folder of the head; its run is kept there, too.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder of texts and states, which heads of one model share; default: in the cache."),
]
Minutes = Annotated[float, typer.Option(min=0.1, help="For all of it: texts, states and training.")]
NumTokens = Annotated[int, typer.Option(min=256, help="Tokens of texts at most.")]
NaturalText = Annotated[Path | None, typer.Option("--text", help="Natural text to learn from first: file or folder.")]
DraftVocab = Annotated[int, typer.Option(min=16, help="Tokens that the head can draft.")]


@app.command()
def eagle(
    out: Out,
    model: Model = DEFAULT_MODEL,
    data: Data = None,
    minutes: Minutes = 90.0,
    num_tokens: NumTokens = 400_000,
    draft_vocab: DraftVocab = 8192,
    text: NaturalText = None,
) -> None:
    """An EAGLE head, which drafts as `eagle2`."""
    _train("eagle", out, model, data, (minutes, num_tokens, draft_vocab), text)


@app.command()
def eagle3(
    out: Out,
    model: Model = DEFAULT_MODEL,
    data: Data = None,
    minutes: Minutes = 90.0,
    num_tokens: NumTokens = 400_000,
    draft_vocab: DraftVocab = 8192,
    text: NaturalText = None,
) -> None:
    """An EAGLE-3 head, which drafts as `eagle3`."""
    _train("eagle3", out, model, data, (minutes, num_tokens, draft_vocab), text)


@app.command()
def medusa(
    out: Out,
    model: Model = DEFAULT_MODEL,
    data: Data = None,
    minutes: Minutes = 90.0,
    num_tokens: NumTokens = 400_000,
    draft_vocab: DraftVocab = 8192,
    text: NaturalText = None,
) -> None:
    """Medusa heads."""
    _train("medusa", out, model, data, (minutes, num_tokens, draft_vocab), text)


def _train(
    kind: Kind, out: Path, model: str, data: Path | None, sizes: tuple[float, int, int], text: Path | None
) -> None:
    from outrider.engine.pull import locate
    from outrider.training.job import Job, run

    folder = locate(model, cache_dir())
    minutes, num_tokens, draft_vocab = sizes
    job = Job(
        kind=kind,
        model=folder,
        out=out,
        data=data or cache_dir() / "training" / folder.name,
        minutes=minutes,
        num_tokens=num_tokens,
        draft_vocab=draft_vocab,
        text=text,
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
