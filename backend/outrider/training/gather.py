"""Lets the target write until there is enough to train on; keeps the texts, and the states that it had meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from outrider.engine.model import LlamaModel
from outrider.engine.tokenizer import Tokenizer
from outrider.training.corpus import Corpus, Progress, Text
from outrider.training.features import SHARD, points_of, shard_path, write_shard
from outrider.training.prompts import prompts
from outrider.training.writer import MAX_ANSWER, Writer


def gather(
    model: LlamaModel,
    tokenizer: Tokenizer,
    corpus: Corpus,
    states: Path,
    limits: tuple[int, float],
    progress: Progress,
) -> None:
    """Until `corpus` has so many tokens, or seconds are over: `limits` are these two. What was begun is finished.

    States go to files as `cache_features` names them, which need not be computed again; of a kill, the texts stay.
    """
    num_tokens, seconds = limits
    deadline = time.monotonic() + seconds
    done, texts = {text.index for text in corpus.texts}, {text.prompt for text in corpus.texts}
    points, fresh = points_of(model), dict[int, torch.Tensor]()
    # Another seed than that of a run before this one, which asked other questions.
    writer = Writer(model, tokenizer, points, seed=len(corpus.texts))
    source = (
        prompt
        for prompt in prompts()
        if prompt.index not in done and prompt.text not in texts and (prompt.text or writer.can_ask)
    )

    def is_open(num_begun: int) -> bool:
        expected = corpus.num_tokens + num_begun * MAX_ANSWER // 2
        return expected < num_tokens and time.monotonic() < deadline

    for written in writer.write(source, is_open):
        prompt = written.prompt
        text = Text(
            prompt.index, prompt.task, prompt.temperature, prompt.text, written.prompt_ids, written.answer_ids
        )
        corpus.append(text)
        fresh[text.index] = written.states
        if len(corpus.texts) % SHARD == 0:
            _keep(corpus.texts[-SHARD:], fresh, points, states)
        count, passed = corpus.num_tokens, 1 - (deadline - time.monotonic()) / max(seconds, 1e-9)
        progress(f"the target writes: {count} tokens", min(1.0, max(count / num_tokens, passed)))


def _keep(texts: list[Text], fresh: dict[int, torch.Tensor], points: tuple[int, ...], folder: Path) -> None:
    """Unless an earlier run wrote some of them."""
    if all(text.index in fresh for text in texts):
        write_shard(shard_path(folder, texts, points), [fresh.pop(text.index) for text in texts])
    fresh.clear()
