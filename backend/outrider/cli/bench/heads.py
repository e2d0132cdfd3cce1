"""`outrider bench heads`: what heads are worth: shapes of drafts, temperatures, 8-bit weights, against off."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.bench.samples import SETTING_OFF, Case, Sample, Samples, Setting, accept_length
from outrider.cli.console import progress_bar
from outrider.config import DEFAULT_MODEL, cache_dir

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
#: Depths whose agreement is shown.
DEPTHS = 4


def heads(  # noqa: PLR0913 - one parameter per flag
    eagle: Annotated[list[Path], typer.Option(help="Folder of an EAGLE or EAGLE-3 head; may be given again.")] = [],  # noqa: B006 - typer copies it
    medusa: Annotated[Path | None, typer.Option(help="Folder of Medusa heads.")] = None,
    model: Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")] = DEFAULT_MODEL,
    spec_bench: Annotated[Path | None, typer.Option(help="Spec-Bench's questions, one JSON object a line.")] = None,
    k: Annotated[int, typer.Option(min=1, max=16, help="Draft tokens a step, of chains and trees alike.")] = 4,
    tree_k: Annotated[int, typer.Option(min=1, max=16, help="Nodes of larger trees, which are measured too.")] = 10,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time for all of it.")] = 10.0,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 96,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Every way to draft with these heads, on prompts that training never saw, all in one run."""
    from outrider.cli.bench.show import show
    from outrider.engine.engine import Engine, EngineLimits
    from outrider.engine.pull import locate
    from outrider.workloads.conditions import conditions

    engine = Engine(locate(model, cache_dir()), EngineLimits())
    arms = dict(_arms(engine, eagle, medusa))
    settings = [SETTING_OFF]
    for arm in arms:
        settings.append(Setting(arm, k))
        if "chain" not in arm and tree_k != k:
            settings.append(Setting(arm, tree_k))
    samples: list[Sample] = []
    deadline = time.monotonic() + 60 * minutes
    with progress_bar() as progress:
        for case in _cases(spec_bench, max_tokens):
            if time.monotonic() >= deadline and samples:
                break
            for setting in settings:
                progress(f"{case.name}: {setting}", 1 - max(0.0, deadline - time.monotonic()) / (60 * minutes))
                samples.append(_answer(engine, case, setting, arms.get(setting.arm)))
    measured = Samples(samples)
    tables = {"drafts against off": _rows(measured)}
    stated = conditions(model=model, minutes=minutes, max_tokens=max_tokens, prompts=len(measured.cases))
    show(tables, (), stated)
    if json_file is not None:
        data = {"conditions": stated, "tables": tables, "samples": [sample.as_dict() for sample in samples]}
        json_file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _arms(engine: Engine, eagle: Sequence[Path], medusa: Path | None) -> Iterator[tuple[str, Make]]:
    from outrider.engine.drafters.draft_memory import DraftMemory
    from outrider.engine.drafters.eagle_head import EagleHead
    from outrider.engine.drafters.medusa import MedusaDrafter, MedusaHeads

    yield "ngram", engine.drafters.makers["ngram"]
    for folder in eagle:
        for suffix, is_int8 in (("", False), (" int8", True)):
            head = EagleHead(folder, engine.model, is_int8=is_int8)
            memory = DraftMemory(head, 2 * engine.context_length)
            name = ("eagle2" if head.kind == "eagle" else "eagle3") + suffix

            eagle_of = partial(_eagle, head, memory)
            yield f"{name} dynamic", partial(eagle_of, "dynamic")
            if not is_int8:
                yield f"{name} chain", partial(eagle_of, "chain")
                yield f"{name} static", partial(eagle_of, "static")
                yield f"{name} hybrid", partial(_hybrid, partial(eagle_of, "dynamic"))
    if medusa is not None:
        for suffix, is_int8 in (("", False), (" int8", True)):
            all_heads = MedusaHeads(medusa, engine.model, is_int8=is_int8)
            yield f"medusa{suffix} tree", partial(MedusaDrafter, all_heads)
            if not is_int8:
                yield "medusa chain", partial(MedusaDrafter, all_heads, is_chain=True)


def _eagle(head: EagleHead, memory: DraftMemory, shape: Shape, request: GenerateRequest) -> EagleDrafter:
    from outrider.engine.drafters.eagle import EagleDrafter, EagleSettings

    return EagleDrafter(head, memory, request, EagleSettings(shape, head.accuracy))


def _hybrid(make: Callable[[GenerateRequest], EagleDrafter], request: GenerateRequest) -> Drafter:
    from outrider.engine.drafters.eagle_hybrid import HybridDrafter

    return HybridDrafter(make(request), request.prompt_ids)


def _cases(spec_bench: Path | None, max_tokens: int) -> Iterator[Case]:
    """Held-out prompts and questions by turns, each at every temperature; endless."""
    from outrider.training.prompts import is_held_out, prompts
    from outrider.workloads.spec_bench import load_questions, sample

    held_out = (prompt for prompt in prompts() if is_held_out(prompt.text))
    questions = iter(sample(load_questions(spec_bench), SEED)) if spec_bench is not None else iter(())
    while True:
        found = [(f"own-{p.index}", p.task, p.text) for p in islice(held_out, 2)]
        found += [(f"spec-{q.question_id}", f"spec {q.category}", q.turns[0]) for q in islice(questions, 2)]
        for name, group, text in found:
            for temperature in TEMPERATURES:
                yield Case(f"{name}-{temperature}", group, text, temperature, max_tokens)


def _answer(engine: Engine, case: Case, setting: Setting, make: Make | None) -> Sample:
    from outrider.cli.bench.timed import answer
    from outrider.engine.sequence import GenerateRequest
    from outrider.policy.plan import PLAN_OFF, Plan
    from outrider.speculation.target import SamplingLaw

    plan = PLAN_OFF if make is None else Plan(setting.arm.split()[0], setting.k)
    # A salt of its own: the prompt's states are wanted, so that it is read again.
    request = GenerateRequest(
        "bench", tuple(engine.tokenizer.encode_chat(case.messages)), SamplingLaw(case.temperature), case.max_tokens,
        plan, SEED, stop_token_ids=frozenset(engine.model.config.eos_token_ids), cache_salt=f"{setting} {case.name}",
        is_seeded=False,
    )  # fmt: skip
    return answer(engine, request, None if make is None else make(request), (setting, case, 0))


def _rows(samples: Samples) -> list[dict[str, Any]]:
    """A row for each way to draft and temperature, over all tasks."""
    rows = []
    for temperature in TEMPERATURES:
        part = Samples([sample for sample in samples.all if sample.case.temperature == temperature])
        for setting in part.settings:
            answers = [sample for sample in part.of(setting) if sample.stats is not None]
            row: dict[str, Any] = {"T": str(temperature), "drafts": str(setting), "tokens/s": part.speed(setting)}
            if answers:
                row |= {
                    "against off": part.ratio(setting, SETTING_OFF),
                    "accept length": accept_length(answers),
                    "agreement by depth": " ".join(f"{rate:.2f}" for rate in _hazards(answers)),
                    "draft ms a step": 1e3 * sum(s.draft_s for s in answers) / _steps(answers),
                    "same text": mean(
                        a.token_ids == b.token_ids for a, b in part.beside(setting, SETTING_OFF)
                    ) if temperature == 0.0 else None,
                }  # fmt: skip
            rows.append(row)
    return rows


def _steps(answers: Sequence[Sample]) -> int:
    return sum(sample.stats.num_verify_steps for sample in answers if sample.stats is not None)


def _hazards(answers: Sequence[Sample]) -> list[float]:
    """By depth, how often a step that got there got further; depths that no step reached are left out."""
    reached = [0] * (DEPTHS + 1)
    for sample in answers:
        for accepted, count in enumerate(sample.stats.histogram if sample.stats is not None else ()):
            for depth in range(min(accepted, DEPTHS) + 1):
                reached[depth] += count
    return [further / here for here, further in pairwise(reached) if here]
