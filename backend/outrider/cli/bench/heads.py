"""`outrider bench heads`: what heads are worth: shapes of drafts, temperatures, 8-bit weights, against off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.bench.head_tables import grid, head_aims, head_rows
from outrider.cli.bench.samples import SETTING_OFF, Case, Sample, Samples, Setting, accept_length
from outrider.cli.bench.show import JsonFile, show, write_json
from outrider.cli.console import progress_bar
from outrider.config import DEFAULT_MODEL, cache_dir
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.engine.drafters import Drafter
    from outrider.engine.drafters.draft_memory import DraftMemory
    from outrider.engine.drafters.eagle import EagleDrafter, Shape
    from outrider.engine.drafters.eagle_head import EagleHead
    from outrider.engine.engine import Engine
    from outrider.engine.sequence import GenerateRequest

    Make = Callable[[GenerateRequest], Drafter]

TEMPERATURES = (0.0, 0.5, 1.0)
SEED = 11


def heads(  # noqa: PLR0913 - one parameter per flag
    eagle: Annotated[list[Path], typer.Option(help="Folder of an EAGLE or EAGLE-3 head; one of each.")] = [],  # noqa: B006 - typer copies it
    medusa: Annotated[Path | None, typer.Option(help="Folder of Medusa heads.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="A draft model too, in full and in 8 bits.")] = None,
    model: Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")] = DEFAULT_MODEL,
    spec_bench: Annotated[Path | None, typer.Option(help="Spec-Bench's questions, one JSON object a line.")] = None,
    k: Annotated[int, typer.Option(min=1, max=16, help="Draft tokens a step, of chains and trees alike.")] = 4,
    tree_k: Annotated[int, typer.Option(min=1, max=16, help="Nodes of larger trees, which are measured too.")] = 10,
    temperature: Annotated[
        list[float], typer.Option(help="Of the answers; may be given again. Aims are of greedy ones.")
    ] = list(TEMPERATURES),  # noqa: B006 - typer copies it
    minutes: Annotated[float, typer.Option(min=0.1, help="Time for all of it.")] = 10.0,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 96,
    json_file: JsonFile = None,
    record: Annotated[
        bool, typer.Option(help="Write into each head's config what it is worth: those that lose are off by default.")
    ] = False,
) -> None:
    """Every way to draft with these heads, on prompts that training never saw, all in one run.

    `eagle2` and `eagle2 hybrid` are what an engine drafts, whose trees end where a step does not pay; `eagle2
    dynamic` is the whole tree, to compare with the others of its size.

    Ctrl-C keeps what is done, and records nothing.
    """
    from outrider.cli.bench.aims import aim_rows
    from outrider.engine.engine import Engine, EngineLimits
    from outrider.engine.pull import locate
    from outrider.workloads.conditions import conditions

    if record and 0.0 not in temperature:
        raise ConfigError("--record: what a head is worth is said of greedy answers, so of --temperature 0 too")
    kinds = [_name(folder) for folder in eagle]
    if twice := [folder for i, folder in enumerate(eagle) if kinds[i] in kinds[:i]]:
        raise ConfigError(f"--eagle {twice[0]}: a second {_name(twice[0])} head, of which one is measured at a time")
    engine = Engine(locate(model, cache_dir()), EngineLimits())
    arms = dict(_arms(engine, eagle, medusa, locate(draft_model, cache_dir()) if draft_model else None))
    cases, answers, is_interrupted = _cases(spec_bench, max_tokens, temperature), list[Sample](), False
    try:
        for sample in _answers(engine, arms, _settings(arms, k, tree_k), cases, minutes):
            answers.append(sample)
    except KeyboardInterrupt:
        is_interrupted = True
    measured = Samples(answers)
    tables = {
        "drafts against off": head_rows(measured),
        "accept length by task": grid(measured),
        "aims": aim_rows(head_aims(measured, k)),
    }
    stated = conditions(model=model, minutes=minutes, max_tokens=max_tokens, prompts=len(measured.cases))
    show(tables, (), stated)
    write_json(json_file, {"conditions": stated, "tables": tables, "samples": [one.as_dict() for one in answers]})
    if is_interrupted:
        raise typer.Exit(130)
    for folder in (*eagle, *([medusa] if medusa else [])) if record else ():
        _record(folder, "medusa" if folder == medusa else _name(folder), measured.at(0.0))


def _settings(arms: Mapping[str, Make], k: int, tree_k: int) -> list[Setting]:
    settings = [SETTING_OFF]
    for arm in arms:
        settings.append(Setting(arm, k))
        if "chain" not in arm and tree_k != k:
            settings.append(Setting(arm, tree_k))
    return settings


def _answers(
    engine: Engine, arms: Mapping[str, Make], settings: Sequence[Setting], cases: Iterator[Case], minutes: float
) -> Iterator[Sample]:
    """Of whole cases, each in all settings, until time is up."""
    from outrider.cli.bench.measure import Clock

    with progress_bar() as progress:
        clock = Clock(minutes, progress)
        for number, case in enumerate(cases):
            if number and clock.share >= 1.0:
                return
            for setting in settings:
                clock.show(f"{case.name}: {setting}")
                yield _answer(engine, case, setting, arms.get(setting.arm))


def _arms(
    engine: Engine, eagle: Sequence[Path], medusa: Path | None, draft_model: Path | None
) -> Iterator[tuple[str, Make]]:
    from outrider.engine.drafters.draft_memory import DraftMemory
    from outrider.engine.drafters.eagle_head import EagleHead
    from outrider.engine.drafters.medusa import MedusaDrafter, MedusaHeads
    from outrider.engine.drafters.sources import DrafterSources, DraftOptions

    yield "ngram", engine.drafters.makers["ngram"]
    for folder in eagle:
        for suffix, is_int8 in (("", False), (" int8", True)):
            head = EagleHead(folder, engine.model, is_int8=is_int8)
            memory = DraftMemory(head, 2 * engine.context_length)
            name = ("eagle2" if head.kind == "eagle" else "eagle3") + suffix
            eagle_of = partial(_eagle, head, memory)
            pays_of = partial(eagle_of, "dynamic", head.weight_bytes / engine.model.packed_bytes)
            yield name, pays_of
            if not is_int8:
                yield f"{name} hybrid", partial(_hybrid, pays_of)
                for shape in ("dynamic", "static", "chain"):
                    yield f"{name} {shape}", partial(eagle_of, shape, 0.0)
    if medusa is not None:
        for suffix, is_int8 in (("", False), (" int8", True)):
            all_heads = MedusaHeads(medusa, engine.model, is_int8=is_int8)
            yield f"medusa{suffix} tree", partial(MedusaDrafter, all_heads)
            if not is_int8:
                yield "medusa chain", partial(MedusaDrafter, all_heads, is_chain=True)

    if draft_model is not None:
        for suffix, is_int8 in (("", False), (" int8", True)):
            options = DraftOptions(draft_model, is_int8=is_int8)
            sources = DrafterSources(engine.model, engine.tokenizer, options, 2 * engine.context_length)
            yield f"draft_model{suffix} chain", sources.makers["draft_model"]


def _name(folder: Path) -> str:
    from outrider.engine.checkpoint import read_json
    from outrider.engine.drafters.eagle_checkpoint import ARCHITECTURES

    kinds = [ARCHITECTURES.get(name) for name in read_json(folder / "config.json").get("architectures", ())]
    return "eagle3" if "eagle3" in kinds else "eagle2"


def _record(folder: Path, name: str, greedy: Samples) -> None:
    """Of the ways in which an engine drafts with it, and their sizes, the one that gained most."""
    from outrider.engine.shipped import Worth, record
    from outrider.workloads.conditions import conditions

    ways = ("medusa tree",) if name == "medusa" else (name, f"{name} hybrid")
    arms = [setting.arm for setting in greedy.settings if setting.arm in ways]
    best = greedy.best_of(arms) or SETTING_OFF
    gain, length = greedy.ratio(best, SETTING_OFF), accept_length(greedy.of(best))
    if gain is None or length is None:
        raise ConfigError(f"{folder}: too few answers to say what it is worth: allow more minutes")
    machine = f"{conditions()['cpu']}"
    record(folder, Worth(
        drafts=str(best), accept_length=round(length, 3), against_off=round(gain, 3),
        num_answers=len(greedy.of(best)), machine=machine,
    ))  # fmt: skip


def _eagle(
    head: EagleHead, memory: DraftMemory, shape: Shape, min_gain: float, request: GenerateRequest
) -> EagleDrafter:
    from outrider.engine.drafters.eagle import EagleDrafter, EagleSettings

    return EagleDrafter(head, memory, request, EagleSettings(shape, head.accuracy, min_gain))


def _hybrid(make: Callable[[GenerateRequest], EagleDrafter], request: GenerateRequest) -> Drafter:
    from outrider.engine.drafters.hybrid import HybridDrafter
    from outrider.engine.drafters.suffix import SuffixDrafter, SuffixStore

    return HybridDrafter(make(request), SuffixDrafter(request.prompt_ids, SuffixStore(), ""))


def _cases(spec_bench: Path | None, max_tokens: int, temperatures: Sequence[float]) -> Iterator[Case]:
    """Held-out prompts and questions by turns, each at every temperature; endless."""
    from outrider.training.prompts import is_held_out, prompts
    from outrider.workloads.spec_bench import load_questions, sample

    held_out = (prompt for prompt in prompts() if prompt.text and is_held_out(prompt.text))
    questions = iter(sample(load_questions(spec_bench), SEED)) if spec_bench is not None else iter(())
    while True:
        found = [(f"own-{p.index}", p.task, p.text) for p in islice(held_out, 2)]
        found += [(f"spec-{q.question_id}", f"spec {q.category}", q.turns[0]) for q in islice(questions, 2)]
        for name, group, text in found:
            for temperature in temperatures:
                yield Case(f"{name}-{temperature}", group, text, temperature, max_tokens)


def _answer(engine: Engine, case: Case, setting: Setting, make: Make | None) -> Sample:
    from outrider.cli.bench.timed import answer, request_of
    from outrider.policy.plan import PLAN_OFF, Plan

    plan = PLAN_OFF if make is None else Plan(setting.arm.split()[0], setting.k)
    # A salt of its own: the prompt's states are wanted, so that it is read again.
    salt = f"{setting} {case.name}"
    request = request_of(engine, case, plan, seed=SEED, cache_salt=salt, is_seeded=False)
    return answer(engine, request, None if make is None else make(request), (setting, case, 0))
