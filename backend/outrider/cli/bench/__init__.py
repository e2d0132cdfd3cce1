"""`outrider bench`: what speculation is worth on this machine, all arms in one run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from outrider.cli.bench.gateway import gateway
from outrider.cli.bench.load import load
from outrider.cli.console import progress_bar
from outrider.config import DEFAULT_MODEL, cache_dir, packaged_data

if TYPE_CHECKING:
    from outrider.cli.bench.measure import Results

#: Columns of tables that are not printed to a terminal.
WIDTH = 180

app = typer.Typer(help="Measurements; every one prints its conditions.", no_args_is_help=True)
app.command()(gateway)
app.command()(load)


@app.command()
def engine(
    suite: Annotated[
        Literal["drafters", "policy"],
        typer.Option(help="All drafters, other programs and aims; or what the shipped policy gains by task."),
    ] = "drafters",
    model: Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")] = DEFAULT_MODEL,
    prompts: Annotated[Path | None, typer.Option(help="Prompt file; none takes the one that ships.")] = None,
    spec_bench: Annotated[Path | None, typer.Option(help="Spec-Bench's questions, one JSON object a line.")] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time for all of it; more answers more prompts.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Which questions of each category come first.")] = 0,
    draft_model: Annotated[str | None, typer.Option(help="A smaller model, named like the model.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Decode speed of this engine, Hugging Face and llama.cpp on the same prompts. Ctrl-C keeps what is done."""
    from outrider.cli.bench.measure import Clock, Results
    from outrider.cli.bench.report import as_json
    from outrider.cli.bench.suites import Models, Tasks, facts, run_drafters, run_policy
    from outrider.engine.pull import locate
    from outrider.workloads.conditions import conditions
    from outrider.workloads.prompts import load_prompts
    from outrider.workloads.spec_bench import load_questions

    draft_folder = None if draft_model is None else locate(draft_model, cache_dir())
    models = Models(model, locate(model, cache_dir()), draft_folder)
    prompt_set = load_prompts(prompts or packaged_data("workloads") / "tasks.yaml")
    tasks = Tasks(prompt_set, [] if spec_bench is None else load_questions(spec_bench), seed)
    machine = conditions(suite=suite, model=model, minutes=minutes)
    results = Results()
    with progress_bar() as progress:
        run = run_policy if suite == "policy" else run_drafters
        try:
            run(models, tasks, Clock(minutes, progress), results)
        except KeyboardInterrupt:
            results.is_interrupted = True
    stated = machine | facts(suite, tasks, results)
    print_report(results, stated)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(results, stated), indent=2) + "\n", encoding="utf-8")
    if results.is_interrupted:
        raise typer.Exit(130)


def print_report(results: Results, stated: Mapping[str, object]) -> None:
    """Every table for which something was measured, and what it was measured under."""
    from rich.console import Console

    from outrider.cli.bench.report import as_table, parts

    console = Console()
    if not console.is_terminal:  # a file or a pipe has no edge to fold at
        console.width = WIDTH
    for title, rows in parts(results).items():
        console.print(as_table(title, rows))
    for note in results.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    console.print("conditions: " + ", ".join(f"{key} {value}" for key, value in stated.items()), soft_wrap=True)
