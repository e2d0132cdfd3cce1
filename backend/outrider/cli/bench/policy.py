"""`outrider bench policy`: mixed traffic under every fixed setting and under the policy, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.bench.mix import FIXED, Mix, mixed_cases, parse_fixed, parse_sizes, usual_fixed
from outrider.cli.bench.show import JsonFile, made_folder, show, write_json
from outrider.cli.console import progress_bar
from outrider.config import DEFAULT_MODEL, cache_dir, packaged_data

if TYPE_CHECKING:
    from outrider.cli.bench.traffic import Traffic


def policy(  # noqa: PLR0913 - one parameter per flag
    model: Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")] = DEFAULT_MODEL,
    prompts: Annotated[Path | None, typer.Option(help="Prompt file; its tasks are the workloads.")] = None,
    spec_bench: Annotated[
        Path | None, typer.Option(help="Take code, chat and creative from this file instead.")
    ] = None,
    fixed: Annotated[
        str | None,
        typer.Option(help=f"Settings that the policy is held against; else {FIXED}, and heads with k 4."),
    ] = None,
    batch: Annotated[str, typer.Option(help="Concurrent requests.")] = "1,4,12",
    trim_fixed: Annotated[
        bool, typer.Option(help="Leave out drafts that do not pay under fixed settings too, by the cost table.")
    ] = False,
    minutes: Annotated[float, typer.Option(min=0.01, help="Time for all of it; more gives more rounds.")] = 14.0,
    out: Annotated[Path | None, typer.Option(help="Folder of a page with plots.")] = None,
    json_file: JsonFile = None,
) -> None:
    """What deciding per request is worth: the policy against every fixed setting. Ctrl-C keeps what is done."""
    from outrider.cli.bench.closed_loop import measure_mix
    from outrider.cli.bench.measure import Clock
    from outrider.cli.bench.mix_report import facts, missing_cells, mix_parts, write_mix_report
    from outrider.cli.bench.ours import EngineArm
    from outrider.cli.bench.regret import Regret
    from outrider.engine.profile import read_table, table_path
    from outrider.engine.pull import locate
    from outrider.workloads.conditions import conditions
    from outrider.workloads.spec_bench import load_questions
    from outrider.workloads.suite import load_prompts

    folder, sizes = locate(model, cache_dir()), parse_sizes(batch)
    questions = [] if spec_bench is None else load_questions(spec_bench)
    cases = mixed_cases(load_prompts(prompts or packaged_data("workloads") / "mixed.yaml"), questions)
    machine = conditions(model=model, minutes=minutes)
    traffic: list[Traffic] = []
    is_interrupted = False
    with progress_bar() as progress:
        clock = Clock(minutes, progress)
        clock.show("loading the model")
        ours = EngineArm(folder, cost=read_table(table_path(folder, cache_dir())))
        drafters = tuple(ours.engine.drafters.makers)
        settings = parse_fixed(fixed or usual_fixed(drafters), drafters)
        mix = Mix(cases, sizes, settings, ours.limits.max_running, trim_fixed)
        if out is not None:
            made_folder(out)
        try:
            measure_mix(ours, mix, clock, traffic)
        except KeyboardInterrupt:
            is_interrupted = True
    regret = Regret(traffic)
    stated = machine | facts(ours, mix, regret, is_interrupted=is_interrupted)
    num_cells = len(regret.cells) + len(regret.hopeless)
    tables = mix_parts(regret, mix.num_cells - num_cells)
    notes = missing_cells(num_cells, mix.num_cells)
    show(tables, notes, stated)
    write_json(json_file, {"conditions": stated, "tables": tables, "traffic": [one.as_dict() for one in traffic]})
    for path in () if out is None else write_mix_report(regret, tables, notes, stated, out):
        typer.echo(path)
    if is_interrupted:
        raise typer.Exit(130)
