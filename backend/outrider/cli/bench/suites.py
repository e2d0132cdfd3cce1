"""The two runs of `outrider bench engine`: which models are loaded and what is measured in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from outrider.cli.bench import hugging_face, llama, visits
from outrider.cli.bench.first_layers import num_first_layers, write_first_layers
from outrider.cli.bench.measure import (
    Arms,
    Clock,
    Other,
    Results,
    measure_batches,
    measure_step,
    measure_visits,
    warm_up,
)
from outrider.cli.bench.ours import CHANGED_EVERY, EngineArm
from outrider.cli.bench.samples import SETTING_OFF, Setting
from outrider.config import cache_dir
from outrider.engine.checkpoint import read_config
from outrider.errors import ModelError
from outrider.workloads.spec_bench import Question
from outrider.workloads.suite import Job

COMPARED = "median over prompts of the ratio on one prompt, over as many tokens as both have"


@dataclass(frozen=True, slots=True)
class Models:
    """Name and folder of the target, and the folder of its draft model: None takes the target's first layers."""

    name: str
    folder: Path
    draft_model: Path | None = None


@dataclass(frozen=True, slots=True)
class Tasks:
    """What is to be answered."""

    prompts: Sequence[Job]
    questions: Sequence[Question] = ()
    seed: int = 0


def run_tasks(models: Models, tasks: Tasks, clock: Clock, results: Results) -> None:
    """Hugging Face, off, and what the shipped policy decides, on our prompts at their own temperatures."""
    clock.show("loading models")
    arms = Arms(EngineArm(models.folder), _hugging_face(models, results))
    plain = [Setting("hf")] if "hf" in arms.others else []
    planned = visits.task_visits(tasks.prompts, plain)
    warm_up(arms, planned[0].case, [SETTING_OFF, *plain])
    results.decided_by = arms.ours.facts(is_learning=False)
    measure_visits(arms, planned, clock, results)


def run_drafters(models: Models, tasks: Tasks, clock: Clock, results: Results) -> None:
    """A step taken apart, the batch sweep, and every arm on greedy prompts until the time is over."""
    clock.show("loading models")
    with TemporaryDirectory(prefix="outrider-bench-") as scratch:
        told = {"draft_model": str(models.draft_model)}
        if models.draft_model is None:
            models, told["draft_model"] = _with_first_layers(models, Path(scratch) / "first-layers")
        _run_drafters(models, tasks, clock, results)
        results.decided_by |= told


def _with_first_layers(models: Models, folder: Path) -> tuple[Models, str]:
    """The models with a draft model that is written to `folder`, and that in words."""
    num_layers = read_config(models.folder).num_layers
    num_kept = num_first_layers(num_layers)
    write_first_layers(models.folder, folder, num_kept)
    return replace(models, draft_model=folder), f"the target's first {num_kept} of {num_layers} layers, not trained"


def _run_drafters(models: Models, tasks: Tasks, clock: Clock, results: Results) -> None:
    cases = visits.greedy_cases(tasks.prompts, tasks.questions, tasks.seed)
    slow, fast = _hugging_face(models, results), _llama(models, clock, results)
    arms = Arms(EngineArm(models.folder, models.draft_model), slow | fast)
    drafters = [name for name in visits.SLOW if name in arms.ours.engine.drafters.makers]
    tiers = visits.Tiers(
        visits.settings_of(visits.LIGHT) + [Setting(arm) for arm in fast],
        [Setting(arm) for arm in slow if arm not in hugging_face.ASSISTED],
        visits.settings_of(drafters) + [Setting(arm) for arm in slow if arm in hugging_face.ASSISTED],
    )
    warm_up(arms, cases[0], [SETTING_OFF, *tiers.all])
    results.decided_by = arms.ours.facts(is_learning=False)
    measure_step(arms.ours, cases[0], clock, results)
    measure_batches(arms.ours, cases, clock, results)
    measure_visits(arms, visits.drafter_visits(cases, tiers, clock.minutes), clock, results)


def _hugging_face(models: Models, results: Results) -> dict[str, Other]:
    """Nothing, with a note, where transformers is missing."""
    if not hugging_face.is_installed():
        results.notes.append("Hugging Face was left out: transformers is not installed")
        return {}
    arm = hugging_face.HuggingFaceArm(models.folder, models.draft_model)
    return dict.fromkeys(arm.arms, arm.run)


def _llama(models: Models, clock: Clock, results: Results) -> dict[str, Other]:
    """Nothing, with a note, where llama-cpp-python or a file for it is missing."""
    import torch

    from outrider.engine.pull import CATALOG, fetch_packed

    try:
        if not llama.is_installed():
            raise ModelError("llama-cpp-python is not installed")
        if models.name not in CATALOG:
            raise ModelError(f"no 4-bit file is known for {models.name}")
        packed = fetch_packed(CATALOG[models.name], cache_dir(), lambda what, fraction: clock.show(what))
    except ModelError as error:
        results.notes.append(f"llama.cpp was left out: {error}")
        return {}
    return dict.fromkeys(llama.ARMS, llama.LlamaCppArm(packed, torch.get_num_threads()).run)


def facts(suite: str, tasks: Tasks, results: Results) -> dict[str, object]:
    """How this run was made, beyond machine and versions."""
    import torch

    made: dict[str, object] = {
        "threads": torch.get_num_threads(),
        **results.decided_by,
        "visits": f"{results.num_visits} of {results.num_planned}{', interrupted' if results.is_interrupted else ''}",
        "hf": f"fp32, first {hugging_face.MAX_TOKENS} tokens, {hugging_face.MAX_ASSISTED_TOKENS} when assisted",
    }
    if suite == "tasks":
        return made | {"rounds": visits.TASK_ROUNDS, "ratios": COMPARED}
    return made | {
        "seed": tasks.seed,
        "questions": len(tasks.questions),
        "answers": f"greedy, {visits.TOKENS} tokens ({visits.PREDICTED_TOKENS} where predicted)",
        "compared": COMPARED,
        "prediction": f"the off answer with every {CHANGED_EVERY}th token changed",
        "hf_lookup": f"{hugging_face.LOOKUP_TOKENS} tokens",
        "hf_assisted": "the same draft model, library defaults",
        "hf_early_exit": "the target's first third, library defaults",
        "llama.cpp": f"4-bit, look-up of {llama.LOOKUP_TOKENS} tokens",
    }
