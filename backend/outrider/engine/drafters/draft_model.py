"""A smaller model of the same tokenizer as drafter: loaded, compared with the target, and its cost measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from outrider.engine.attention import Segment
from outrider.engine.model import LlamaModel
from outrider.engine.tokenizer import Tokenizer
from outrider.errors import ModelError

log = logging.getLogger(__name__)

#: A draft step that costs more of a target step than this rarely pays.
MAX_COST_RATIO = 0.3
_NUM_TIMED = 5
_NUM_SHOWN = 3


def load_draft_model(folder: Path, target: LlamaModel, tokenizer: Tokenizer) -> LlamaModel:
    """ModelError when the tokenizer differs from the target's; a warning when the model is slow for a drafter."""
    difference = vocabulary_difference(Tokenizer(folder).vocabulary, tokenizer.vocabulary)
    if difference is not None:
        raise ModelError(f"{folder}: a draft model needs the target's tokenizer, but {difference}")
    model = LlamaModel(folder)
    ratio = step_s(model) / step_s(target)
    if ratio > MAX_COST_RATIO:
        log.warning(
            "%s: a draft step takes %.2f of a target step (more than %.1f); speculation with it may not pay",
            folder, ratio, MAX_COST_RATIO,
        )  # fmt: skip
    return model


def vocabulary_difference(draft: Mapping[str, int], target: Mapping[str, int]) -> str | None:
    """The first token ids that mean different texts, in words; None when there are none."""
    draft_texts = {token_id: text for text, token_id in draft.items()}
    target_texts = {token_id: text for text, token_id in target.items()}
    different = [
        token_id
        for token_id in sorted(draft_texts.keys() | target_texts.keys())
        if draft_texts.get(token_id) != target_texts.get(token_id)
    ]
    if not different:
        return None
    shown = ", ".join(
        f"token {token_id} is {draft_texts.get(token_id)!r} there and {target_texts.get(token_id)!r} here"
        for token_id in different[:_NUM_SHOWN]
    )
    more = len(different) - _NUM_SHOWN
    return f"{shown}, and {more} more differ" if more > 0 else shown


def step_s(model: LlamaModel, skip: frozenset[int] = frozenset()) -> float:
    """Median seconds of a pass of one row over a short text."""
    cache = model.new_cache(_NUM_TIMED + 1)
    times = []
    for _ in range(_NUM_TIMED + 1):
        started_s = time.perf_counter()
        model.forward([Segment(cache, (0,), 1)], skip)
        times.append(time.perf_counter() - started_s)
    return median(times[1:])  # the first pass warms up
