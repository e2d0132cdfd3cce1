"""A smaller model of the same tokenizer as drafter: loaded, compared with the target, and its cost measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from outrider.engine.attention import Segment
from outrider.engine.drafters.model_chain import Forward
from outrider.engine.model import LlamaModel
from outrider.engine.tokenizer import Tokenizer
from outrider.errors import ModelError

log = logging.getLogger(__name__)

#: A draft step that costs more of a target step than this rarely pays.
MAX_STEP_COST = 0.3
_NUM_TIMED = 9
_NUM_SHOWN = 3


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft model."""

    model: LlamaModel
    step_cost: float
    """A step of it, in steps of the target; measured when it was loaded."""

    @property
    def warning(self) -> str | None:
        """None when it is small enough for a drafter."""
        if self.step_cost <= MAX_STEP_COST:
            return None
        return (
            f"a step of the draft model takes {self.step_cost:.2f} of a step of the target, more than "
            f"{MAX_STEP_COST}; speculation with it may not pay"
        )


def load_draft_model(folder: Path, target: LlamaModel, tokenizer: Tokenizer, *, is_int8: bool = False) -> DraftModel:
    """ModelError when the tokenizer differs from the target's; a warning when the model is slow for a drafter."""
    difference = vocabulary_difference(Tokenizer(folder).vocabulary, tokenizer.vocabulary)
    if difference is not None:
        raise ModelError(f"{folder}: a draft model needs the target's tokenizer, but {difference}")
    model = LlamaModel(folder, is_int8=is_int8)
    draft = DraftModel(model, step_s(model, model.forward) / step_s(target, target.forward))
    if draft.warning is not None:
        log.warning("%s: %s", folder, draft.warning)
    return draft


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


def step_s(model: LlamaModel, forward: Forward) -> float:
    """Median seconds of a pass of one row over a short text; `forward`: the model's, or with some of it left out."""
    cache = model.new_cache(_NUM_TIMED + 1)
    times = []
    for _ in range(_NUM_TIMED + 1):
        started_s = time.perf_counter()
        forward([Segment(cache, (0,), 1)])
        times.append(time.perf_counter() - started_s)
    return median(times[1:])  # the first pass warms up
