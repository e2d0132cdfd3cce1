"""A head from nothing: the target writes, its states are cached, the head is trained, scored and described."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.cost import cpu_name
from outrider.engine.checkpoint import Weights
from outrider.engine.engine import Engine, EngineLimits
from outrider.errors import ModelError
from outrider.training import Kind
from outrider.training.corpus import Corpus, Progress, Text, natural_texts
from outrider.training.eagle import EagleRecipe
from outrider.training.features import cache_features, residual_rms, windows
from outrider.training.medusa import MedusaRecipe
from outrider.training.plots import can_plot, plot
from outrider.training.recipes import TEMPERATURES, Output, Recipe, Scores
from outrider.training.train import Trainer, TrainSettings, TrainState, is_started

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
    num_heads: int = 4
    """Of Medusa."""
    text: Path | None = None
    """Natural text to learn from first: a file, or a folder of files."""
    command: str = ""
    """How it was started, for the card."""


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """What came of it."""

    scores: Scores
    state: TrainState


def run(job: Job, progress: Progress) -> Trained:
    """Killed at any moment and started again with the same folders, it goes on."""
    engine = Engine(job.model, EngineLimits(max_running=32, max_total_tokens=32768, context_length=None))
    corpus = Corpus(job.data)
    if not is_started(job.out / "run"):  # a head's texts do not change while it is trained
        corpus.extend(engine, job.num_tokens, 60 * job.minutes * DATA_SHARE, progress)
    if not any(text.is_held_out for text in corpus.texts) or all(text.is_held_out for text in corpus.texts):
        raise ModelError(f"{corpus.path} has too few texts to train on some and keep others")
    natural = [] if job.text is None else natural_texts(engine.tokenizer, job.text, job.num_tokens)
    output = output_for(job, engine, [*corpus.texts, *natural])
    paths = cache_features(engine.model, corpus.texts, job.data / "states", progress)
    recipe = recipe_for(job, engine, output, residual_rms(paths[0], engine.model.config.hidden_size))
    pieces = windows(corpus.texts, paths, recipe.columns, WINDOW)
    if job.text is not None:
        paths = cache_features(engine.model, natural, job.data / f"natural-{job.text.name}", progress)
        pieces += windows(natural, paths, recipe.columns, WINDOW)
    settings = TrainSettings(60 * job.minutes * TRAIN_SHARE, RATES[job.kind])
    trainer = Trainer(recipe, pieces, job.out / "run", settings, engine.model.placement.device)
    scores = trainer.run(progress)
    note = _note(job, corpus, trainer.state, scores)
    recipe.write(job.out, note, scores)
    if can_plot():
        plot(trainer.state, job.out / "training.png")
    (job.out / "README.md").write_text(card(job, note, has_plot=can_plot()), encoding="utf-8")
    return Trained(scores, trainer.state)


def draft_vocabulary(texts: Sequence[Text], size: int, vocab_size: int) -> torch.Tensor:
    """int64 [size], ascending: tokens that occur more than once, the commonest first, then the lowest ids, which byte
    pair encoding gave to what is common everywhere."""
    counts = Counter(token for text in texts for token in text.token_ids)
    common = [token for token, count in counts.most_common() if count > 1]
    order = dict.fromkeys([*common, *range(vocab_size)])
    return torch.tensor(sorted(list(order)[: min(size, vocab_size)]))


def output_for(job: Job, engine: Engine, texts: Sequence[Text]) -> Output:
    config = engine.model.config
    token_ids = draft_vocabulary([text for text in texts if not text.is_held_out], job.draft_vocab, config.vocab_size)
    weights, shape = Weights(job.model), (config.vocab_size, config.hidden_size)
    device = engine.model.placement.device
    embedding = weights.take("model.embed_tokens.weight", *shape).to(device)
    head = embedding if config.has_tied_embeddings else weights.take("lm_head.weight", *shape).to(device)
    return Output(head, token_ids.to(device), embedding)


def recipe_for(job: Job, engine: Engine, output: Output, residual: float = 1.0) -> Recipe:
    if job.kind == "medusa":
        return MedusaRecipe(output, job.num_heads)
    return EagleRecipe(job.kind, engine.model.config, Weights(job.model), output, residual)


def _note(job: Job, corpus: Corpus, state: TrainState, scores: Scores) -> dict[str, Any]:
    return {
        "kind": job.kind,
        "base_model": job.model.name,
        "command": job.command,
        "data": {"sha256": corpus.digest, "num_texts": len(corpus.texts), "num_tokens": corpus.num_tokens},
        "training": {
            "steps": state.step, "token_passes": state.num_tokens, "seconds": round(state.used_s),
            "machine": f"{cpu_name()}, {os.cpu_count()} cores", "date": time.strftime("%Y-%m-%d"),
        },
        "held_out": {
            "num_tokens": scores.num_tokens,
            "agreement": [round(rate, 4) for rate in scores.agreement],
            "overlap": {str(t): [round(rate, 4) for rate in scores.overlap[t]] for t in TEMPERATURES},
        },
    }  # fmt: skip


def card(job: Job, note: Mapping[str, Any], *, has_plot: bool) -> str:
    """A model card in Markdown."""
    held_out, data = note["held_out"], note["data"]
    rows = "\n".join(f"| T {t} | " + " | ".join(map(str, rates)) + " |" for t, rates in held_out["overlap"].items())
    depths = " | ".join(f"token {i + 1}" for i in range(len(held_out["agreement"])))
    rule = "|---" * (len(held_out["agreement"]) + 1) + "|"
    return (
        f"# {job.kind} head for {note['base_model']}\n\n"
        f"Drafts for this model only; what it drafts is verified, so it changes speed and never text.\n\n"
        f"- Made by: `{job.command}`\n"
        f"- Data: {data['num_texts']} texts of {data['num_tokens']} tokens that the model wrote itself at "
        f"temperatures 0 and 0.8; SHA-256 {data['sha256']}\n"
        f"- Training: {json.dumps(note['training'])}\n"
        f"- Draft vocabulary: {job.draft_vocab} tokens\n\n"
        f"Chance that a draft token is accepted when those before it were, on {held_out['num_tokens']} tokens of "
        f"texts that it was not trained on (T 0: agreement of the likeliest tokens; above: overlap of the laws):\n\n"
        f"| | {depths} |\n{rule}\n{rows}\n" + ("\n![loss and agreement](training.png)\n" if has_plot else "")
    )
