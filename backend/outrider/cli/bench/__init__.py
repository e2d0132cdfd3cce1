"""`outrider bench`: what speculation is worth on this machine, all arms in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from outrider.cli.bench.compare import compare
from outrider.cli.bench.gateway import gateway
from outrider.cli.bench.grid import grid
from outrider.cli.bench.heads import heads
from outrider.cli.bench.load import load
from outrider.cli.bench.policy import policy
from outrider.cli.bench.run import run
from outrider.cli.bench.show import JsonFile, show, write_json
from outrider.cli.bench.workers import workers
from outrider.cli.console import progress_bar, refuse
from outrider.config import DEFAULT_MODEL, cache_dir, packaged_data

app = typer.Typer(help="Measurements; every one prints its conditions.", no_args_is_help=True)
app.command()(run)
app.command()(compare)
app.command()(gateway)
app.command()(grid)
app.command()(heads)
app.command()(policy)
app.command()(load)
app.command()(workers)


@app.command()
def engine(
    suite: Annotated[
        Literal["drafters", "tasks"],
        typer.Option(help="All drafters, other programs and aims; or what the shipped policy gains by task, alone."),
    ] = "drafters",
    model: Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")] = DEFAULT_MODEL,
    prompts: Annotated[Path | None, typer.Option(help="Prompt file; none takes the one that ships.")] = None,
    spec_bench: Annotated[Path | None, typer.Option(help="Spec-Bench's questions, one JSON object a line.")] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time for all of it; more answers more prompts.")] = 10.0,
    seed: Annotated[
        int | None, typer.Option(help="Which questions of each category come first; without it, that of 0.")
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option(help="A smaller model, named like the model; without it, its own first layers.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Decode speed of this engine, Hugging Face and llama.cpp on the same prompts. Ctrl-C keeps what is done.

    All in one process on the same tokens, so that speeds are those of engines and not of servers: `bench run` is for
    those, and knows no Hugging Face.
    """
    from outrider.cli.bench.measure import Clock, Results
    from outrider.cli.bench.report import as_json, parts
    from outrider.cli.bench.suites import Models, Tasks, facts, run_drafters, run_tasks
    from outrider.engine.pull import locate
    from outrider.workloads.conditions import conditions
    from outrider.workloads.spec_bench import load_questions
    from outrider.workloads.suite import load_prompts

    if suite == "tasks":
        others = {"--spec-bench": spec_bench, "--seed": seed, "--draft-model": draft_model}
        refuse(others, "not of --suite tasks, which takes prompts and the shipped policy alone")
    draft_folder = None if draft_model is None else locate(draft_model, cache_dir())
    models = Models(model, locate(model, cache_dir()), draft_folder)
    prompt_set = load_prompts(prompts or packaged_data("workloads") / "tasks.yaml")
    tasks = Tasks(prompt_set, [] if spec_bench is None else load_questions(spec_bench), seed or 0)
    machine = conditions(suite=suite, model=model, minutes=minutes)
    results = Results()
    with progress_bar() as progress:
        run = run_tasks if suite == "tasks" else run_drafters
        try:
            run(models, tasks, Clock(minutes, progress), results)
        except KeyboardInterrupt:
            results.is_interrupted = True
    stated = machine | facts(suite, tasks, results)
    show(parts(results), results.notes, stated)
    write_json(json_file, as_json(results, stated))
    if results.is_interrupted:
        raise typer.Exit(130)
