"""A head from nothing: the target writes, its states are cached, the head is trained, scored and described."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.engine.checkpoint import Weights, read_json
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.profile import device_name
from outrider.errors import ModelError
from outrider.plots.png import write_pngs
from outrider.training import Kind
from outrider.training.corpus import Corpus, Progress, natural_texts
from outrider.training.eagle import EagleRecipe
from outrider.training.features import cache_features, residual_rms, windows
from outrider.training.gather import gather
from outrider.training.medusa import MedusaRecipe
from outrider.training.plots import plots_of
from outrider.training.recipes import TEMPERATURES, Output, Recipe, Scores
from outrider.training.selection import Selection, restore, select
from outrider.training.train import NATURAL_UNTIL, Trainer, TrainSettings, TrainState, read_state

#: Of the whole time, what data and training take.
DATA_SHARE, TRAIN_SHARE = 0.35, 0.5
RATES: Mapping[str, float] = {"eagle": 6e-4, "eagle3": 6e-4, "medusa": 1e-3}
WINDOW = 256


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be trained."""

    kind: Kind
    model: Path
    out: Path
    data: Path
    """Texts and states: shared by all heads of one target, and kept."""
    minutes: float = 90.0
    num_tokens: int = 400_000
    """Of texts at most."""
    draft_vocab: int = 8192
    """Tokens that can be drafted; all, where the target has fewer."""
    num_heads: int = 4
    """Of Medusa."""
    text: Path | None = None
    """Natural text to learn from first: a file, or a folder of files."""
    begin_with: Path | None = None
    """Folder of a head to train further, as with more texts than it was trained on."""
    command: str = ""
    """How it was started, for the card."""


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """What came of it."""

    scores: Scores
    state: TrainState


def run(job: Job, progress: Progress, clock: Callable[[], float] | None = None) -> Trained:
    """Killed at any moment and started again with the same folders, it goes on; ModelError when it cannot, because
    the job or its texts became others. `clock`: seconds of training; without one, the machine's."""
    engine = Engine(job.model, EngineLimits(max_running=1, max_total_tokens=4096))
    stored = read_state(job.out / "run")
    selection = _selection(job, engine, stored, progress)
    output = output_for(job, engine, selection.token_ids)
    paths = cache_features(engine.model, selection.written, job.data / "states", progress)
    recipe = recipe_for(job, engine, output, residual_rms(paths[0], engine.model.config.hidden_size))
    pieces = windows(selection.written, paths, recipe.columns, WINDOW)
    if job.text is not None:
        paths = cache_features(engine.model, selection.natural, job.data / f"natural-{job.text.name}", progress)
        pieces += windows(selection.natural, paths, recipe.columns, WINDOW)
    own_clock = _busy_s if engine.model.placement.is_cpu else time.monotonic
    settings = TrainSettings(60 * job.minutes * TRAIN_SHARE, RATES[job.kind], clock=clock or own_clock)
    trainer = Trainer(recipe, selection, pieces, job.out / "run", settings)
    if stored is not None:
        trainer.restore(stored)
        if job.begin_with is not None and trainer.state.begun_with != _origin(job.begin_with):
            raise ModelError(f"{job.out} was not begun with the head in {job.begin_with}")
    elif job.begin_with is not None:
        recipe.begin_with(job.begin_with, engine.model.config)
        trainer.state.begun_with = _origin(job.begin_with)
    scores = trainer.run(progress)
    note = _note(job, selection, trainer.state, scores, device_name(engine.model.placement))
    recipe.write(job.out, note, scores)
    pictures = write_pngs(plots_of(trainer.state), job.out)
    (job.out / "README.md").write_text(card(note, [path.name for path in pictures]), encoding="utf-8")
    return Trained(scores, trainer.state)


def _busy_s() -> float:
    """Seconds that all threads were busy: a run on a machine that others use, or that is stopped for a while, trains
    as much as one alone."""
    return time.process_time() / torch.get_num_threads()


def _selection(job: Job, engine: Engine, stored: Mapping[str, Any] | None, progress: Progress) -> Selection:
    """A new run's texts, of which the target first writes more; those of the stored one."""
    corpus, vocab_size = Corpus(job.data), engine.model.config.vocab_size
    if stored is None:
        limits = job.num_tokens, 60 * job.minutes * DATA_SHARE
        gather(engine.model, engine.tokenizer, corpus, job.data / "states", limits, progress)
    natural = [] if job.text is None else natural_texts(engine.tokenizer, job.text, job.num_tokens)
    texts = [*corpus.texts, *natural]
    if stored is None:
        return select(texts, job.draft_vocab, vocab_size)
    selection = restore(stored["selection"], texts)
    begun, size = len(selection.token_ids), min(job.draft_vocab, vocab_size)
    if begun != size or bool(selection.natural) != bool(natural):
        raise ModelError(
            f"{job.out} was begun with {begun} draft tokens and {len(selection.natural)} natural texts, "
            f"and is to go on with {size} and {len(natural)}"
        )
    return selection


def output_for(job: Job, engine: Engine, token_ids: torch.Tensor) -> Output:
    """The target's output matrix for these draft tokens."""
    config = engine.model.config
    weights, shape = Weights(job.model), (config.vocab_size, config.hidden_size)
    device = engine.model.placement.device
    embedding = weights.take("model.embed_tokens.weight", *shape).to(device)
    head = embedding if config.has_tied_embeddings else weights.take("lm_head.weight", *shape).to(device)
    return Output(head, token_ids.to(device), embedding)


def recipe_for(job: Job, engine: Engine, output: Output, residual: float = 1.0) -> Recipe:
    """What trains the kind of head that the job names."""
    if job.kind == "medusa":
        return MedusaRecipe(output, job.num_heads)
    return EagleRecipe(job.kind, engine.model.config, Weights(job.model), output, residual)


def _note(job: Job, selection: Selection, state: TrainState, scores: Scores, device: str) -> dict[str, Any]:
    """What ran, for config.json and the card."""
    written, natural = selection.written, selection.natural
    return {
        "kind": job.kind,
        "base_model": job.model.name,
        "command": job.command,
        "begun_with": state.begun_with,
        "draft_vocab": len(selection.token_ids),
        "data": {
            "sha256": selection.digest,
            "num_texts": len(written),
            "num_held_out": len(selection.held_out),
            "num_tokens": sum(len(text.token_ids) for text in written),
            "temperatures": sorted({text.temperature for text in written}),
            "natural": None if job.text is None else job.text.name,
            "num_natural_tokens": sum(len(text.token_ids) for text in natural),
        },
        "training": {
            "steps": state.step, "token_passes": state.num_tokens, "seconds": round(state.used_s),
            "machine": f"{device}, {os.cpu_count()} cores", "date": time.strftime("%Y-%m-%d"),
        },
        "held_out": {
            "num_tokens": scores.num_tokens,
            "agreement": [round(rate, 4) for rate in scores.agreement],
            "overlap": {str(t): [round(rate, 4) for rate in scores.overlap[t]] for t in TEMPERATURES},
        },
    }  # fmt: skip


def _origin(folder: Path) -> dict[str, Any]:
    """What the head there says of how it was made."""
    note = read_json(folder / "config.json").get("outrider") or {}
    return {name: note.get(name) for name in ("command", "data", "training", "begun_with")}


def card(note: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """A model card in Markdown; `pictures` are files beside it."""
    held_out, data, begun = note["held_out"], note["data"], note["begun_with"]
    rows = "\n".join(f"| T {t} | " + " | ".join(map(str, rates)) + " |" for t, rates in held_out["overlap"].items())
    depths = " | ".join(f"token {i + 1}" for i in range(len(held_out["agreement"])))
    rule = "|---" * (len(held_out["agreement"]) + 1) + "|"
    natural = (
        f"- Natural text: {data['num_natural_tokens']} tokens of `{data['natural']}`, in the first "
        f"{NATURAL_UNTIL:.0%} of the time\n"
    )
    return (
        f"# {note['kind']} head for {note['base_model']}\n\n"
        f"Drafts for this model only; what it drafts is verified, so it changes speed and never text.\n\n"
        f"- Made by: `{note['command']}`\n"
        f"{'' if begun is None else f'- Begun with a head of: {json.dumps(begun)}{chr(10)}'}"
        f"- Data: {data['num_texts']} texts of {data['num_tokens']} tokens that the model wrote itself at "
        f"temperatures {' and '.join(f'{t:g}' for t in data['temperatures'])}, {data['num_held_out']} of them "
        f"held out\n"
        f"{'' if data['natural'] is None else natural}"
        f"- SHA-256 of the token ids of all that: {data['sha256']}\n"
        f"- Training: {json.dumps(note['training'])}\n"
        f"- Draft vocabulary: {note['draft_vocab']} tokens\n\n"
        f"Chance that a draft token is accepted when those before it were, on {held_out['num_tokens']} tokens of "
        f"texts that it was not trained on (T 0: agreement of the likeliest tokens; above: overlap of the laws):\n\n"
        f"| | {depths} |\n{rule}\n{rows}\n" + "".join(f"\n![{name}]({name})\n" for name in pictures)
    )
