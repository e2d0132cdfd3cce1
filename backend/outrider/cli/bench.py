"""`outrider bench`: what speculation is worth on this machine, all arms in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.bench_gateway import gateway
from outrider.cli.console import progress_bar
from outrider.config import DEFAULT_MODEL, cache_dir, packaged_data

app = typer.Typer(help="Measurements; every one prints its conditions.", no_args_is_help=True)
app.command()(gateway)

Model = Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write all figures and conditions to this file.")]


@app.command()
def engine(
    model: Model = DEFAULT_MODEL,
    prompts: Annotated[Path | None, typer.Option(help="Prompt file; none takes the one that ships.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions; medians are taken.")] = 3,
    hf_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens per prompt of Hugging Face, one round; 0: none.")
    ] = 32,
    json_file: Json = None,
) -> None:
    """Decode speed per task: Hugging Face generate in fp32, this engine without speculation, and with the policy."""
    from rich.console import Console

    from outrider.cli.bench_engine import measure, summary
    from outrider.engine.pull import locate
    from outrider.workloads.conditions import conditions
    from outrider.workloads.prompts import load_prompts

    prompt_set = load_prompts(prompts or packaged_data("workloads") / "tasks.yaml")
    facts = conditions(model=model, rounds=rounds, hf_tokens=hf_tokens, batch=1)
    with progress_bar() as progress:
        samples = measure(locate(model, cache_dir()), prompt_set, rounds, hf_tokens, progress)
    rows, table = summary(samples)
    console = Console()
    console.print(table)
    console.print("conditions: " + ", ".join(f"{key} {value}" for key, value in facts.items()), soft_wrap=True)
    if json_file is not None:
        data = {"conditions": facts, "tasks": rows, "samples": [sample.as_dict() for sample in samples]}
        json_file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
