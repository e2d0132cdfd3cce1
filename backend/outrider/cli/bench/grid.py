"""`outrider bench grid`: how many drafts are accepted, over task, temperature, drafter and k."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.bench.mix import parse_fixed
from outrider.cli.bench.samples import SETTING_OFF, Case, Sample, Setting
from outrider.cli.bench.visits import KS
from outrider.cli.console import progress_bar
from outrider.config import DEFAULT_MODEL, cache_dir, packaged_data
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.cli.bench.grid_cells import Grid
    from outrider.cli.bench.measure import Clock
    from outrider.engine.drafters.sources import DraftOptions
    from outrider.engine.engine import Engine

#: Draft tokens a step of drafters that are trained, and of all that `KS` does not name.
_KS_OF_HEADS = (4, 8)
#: Of sampled answers, each with noise of its own.
_ROUNDS = 3
SEED = 29


def grid(  # noqa: PLR0913 - one parameter per flag
    out: Annotated[Path, typer.Option(help="Folder of figures and report; one of an earlier run is gone on with.")],
    model: Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")] = DEFAULT_MODEL,
    prompts: Annotated[Path | None, typer.Option(help="Prompt file; none takes the one that ships.")] = None,
    spec_bench: Annotated[Path | None, typer.Option(help="Spec-Bench's questions besides, as tasks.")] = None,
    temperatures: Annotated[str, typer.Option(help="At which every prompt is answered.")] = "0,0.7,1.2",
    settings: Annotated[
        str | None, typer.Option(help="As `ngram:4,suffix:8`; none takes every drafter here at several k.")
    ] = None,
    draft_model: Annotated[str | None, typer.Option(help="A smaller model, named like the model.")] = None,
    eagle: Annotated[list[Path], typer.Option(help="Folder of an EAGLE or EAGLE-3 head; one of each.")] = [],  # noqa: B006 - typer copies it
    medusa: Annotated[Path | None, typer.Option(help="Folder of Medusa heads.")] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 48,
    minutes: Annotated[float, typer.Option(min=0.01, help="Time for this run; more fills more of the grid.")] = 20.0,
) -> None:
    """Acceptance and speed of every drafter, for each task and temperature. Ctrl-C keeps what is done."""
    from outrider.cli.bench.grid_cells import Scope, read_grid
    from outrider.cli.bench.grid_report import grid_rows, write_grid_report
    from outrider.cli.bench.measure import Clock
    from outrider.cli.bench.show import made_folder, show
    from outrider.engine.engine import Engine, EngineLimits
    from outrider.engine.pull import locate
    from outrider.workloads.conditions import conditions

    heats, cases = _heats(temperatures), _cases(prompts, spec_bench, max_tokens)
    folder = locate(model, cache_dir())
    engine = Engine(folder, EngineLimits(), _options(folder, draft_model, eagle, medusa))
    found = _settings(engine, settings)
    digests = {name: digest for name, digest in engine.drafters.digests.items() if name in {s.arm for s in found}}
    digest = hashlib.sha256(repr([(c.name, c.group, c.text) for c in cases]).encode()).hexdigest()[:16]
    scope = Scope(
        model=model, prompts=digest, temperatures=heats, settings=list(map(str, found)), max_tokens=max_tokens,
        drafters=digests,
    )  # fmt: skip
    made_folder(out)
    measured = read_grid(out, scope)
    stated = conditions(model=model, minutes=minutes) | _facts(engine, cases)
    measured.runs.append(stated)
    with progress_bar() as progress:
        is_interrupted = _measure(engine, measured, (cases, found), Clock(minutes, progress), out)
    answers = f"{len(measured.answers)} of {measured.num_planned}"
    show({"accept length by cell": grid_rows(measured)}, (), stated | {"answers": answers})
    for path in write_grid_report(measured, out):
        typer.echo(path)
    if is_interrupted:
        raise typer.Exit(130)


def _measure(
    engine: Engine, grid: Grid, what: tuple[Sequence[Case], Sequence[Setting]], clock: Clock, out: Path
) -> bool:
    """Answer what is missing until the time is over, at least one visit; every visit is kept at once. Whether it was
    interrupted."""
    from outrider.cli.bench.grid_cells import answer_of, visits, write_grid

    cases, settings = what
    planned = list(visits(cases, grid.scope.temperatures, _ROUNDS))
    grid.num_planned = len(planned) * len(settings)
    done = {one.key for one in grid.answers}
    num_begun = len(grid.answers)
    _answer(engine, planned[0][1], SETTING_OFF, 0)  # warms up, and counts for nothing
    try:
        for i, (number, case) in enumerate(planned):
            first = i % len(settings)
            for setting in (*settings[first:], *settings[:first]):
                if (case.name, case.temperature, number, setting) in done:
                    continue
                clock.show(f"{case.name} T {case.temperature:g}: {setting}")
                grid.answers.append(answer_of(_answer(engine, case, setting, number)))
            if len(grid.answers) > num_begun:
                write_grid(grid, out)
                if clock.share >= 1.0:
                    break
    except KeyboardInterrupt:
        return True
    finally:
        write_grid(grid, out)
    return False


def _answer(engine: Engine, case: Case, setting: Setting, number: int) -> Sample:
    from outrider.cli.bench.ours import plan_of
    from outrider.cli.bench.timed import answer, request_of

    # A salt of its own: nothing is learnt from earlier answers, and heads are shown the whole prompt.
    salt = f"{setting} {case.name} {case.temperature} {number}"
    request = request_of(engine, case, plan_of(setting), seed=SEED + number, cache_salt=salt, is_seeded=False)
    engine.check(request, "case")
    drafter = None if setting == SETTING_OFF else engine.drafters.makers[setting.arm](request)
    return answer(engine, request, drafter, (setting, case, number))


def _options(folder: Path, draft_model: str | None, eagle: Sequence[Path], medusa: Path | None) -> DraftOptions:
    """Heads that ship for this model where none are given."""
    from outrider.engine.drafters.sources import DraftOptions
    from outrider.engine.profile import layers_for
    from outrider.engine.pull import locate
    from outrider.engine.shipped import heads_for

    shipped = heads_for(folder, packaged_data("heads"))
    smaller = None if draft_model is None else locate(draft_model, cache_dir())
    layers = layers_for(folder, cache_dir())
    return DraftOptions(smaller, layers, tuple(eagle) or shipped.eagle, medusa or shipped.medusa)


def _settings(engine: Engine, given: str | None) -> list[Setting]:
    """Predictions come with requests, and so does what of them is accepted: they are no part of a grid."""
    drafters = [name for name in engine.drafters.makers if name != "prediction"]
    if given is not None:
        return parse_fixed(given, drafters, "--settings")
    return [SETTING_OFF, *(Setting(name, k) for name in drafters for k in KS.get(name, _KS_OF_HEADS))]


def _heats(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--temperatures {text}: wanted numbers with commas between") from error
    if not all(0 <= heat <= 2 for heat in found):
        raise ConfigError(f"--temperatures {text}: wanted numbers from 0 to 2")
    return sorted(set(found))


def _cases(prompts: Path | None, spec_bench: Path | None, max_tokens: int) -> list[Case]:
    from outrider.workloads.spec_bench import load_questions, sample
    from outrider.workloads.suite import load_prompts

    found = load_prompts(prompts or packaged_data("workloads") / "tasks.yaml")
    cases = [Case(p.name, p.task, p.text, 0.0, max_tokens) for p in found]
    questions = [] if spec_bench is None else sample(load_questions(spec_bench), 0)
    return cases + [
        Case(f"spec-{q.question_id}", f"spec/{q.category}", q.turns[0], 0.0, max_tokens) for q in questions
    ]


def _facts(engine: Engine, cases: Sequence[Case]) -> dict[str, object]:
    import torch

    folders = {name: Path(info["folder"]).name for name, info in engine.drafters.info.items() if "folder" in info}
    return {
        "threads": torch.get_num_threads(),
        "prompts": len(cases),
        "drafts": "every draft is verified; sampled answers without a seed, by block verification",
        **{f"weights of {name}": folder for name, folder in folders.items()},
    }
