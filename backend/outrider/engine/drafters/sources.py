"""What drafters are made from: models, layer sets and earlier answers of one engine; and the names it can offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from outrider.engine.drafters import Drafter
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.drafters.draft_model import load_draft_model
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.drafters.layer_skip import LayerSet, default_set, read_layer_set
from outrider.engine.drafters.model_chain import Forward, ModelChainDrafter
from outrider.engine.drafters.ngram import NgramDrafter
from outrider.engine.drafters.prediction import PredictionDrafter
from outrider.engine.drafters.suffix import SuffixDrafter, SuffixStore
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import GenerateRequest
from outrider.engine.tokenizer import Tokenizer
from outrider.errors import InvalidRequest, ModelError


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """What an engine's drafters need beyond the target."""

    draft_model: Path | None = None
    """Folder of a smaller model with the target's tokenizer; None means that `draft_model` is not offered."""
    layer_skip: Path | None = None
    """Layer set for `layer_skip`; None takes the default set, which carries a warning that it was not measured."""


DEFAULT_OPTIONS = DraftOptions()


class DrafterSources:
    """Makes the drafter of each request. ModelError when the options do not suit the target."""

    def __init__(self, target: LlamaModel, tokenizer: Tokenizer, options: DraftOptions, max_positions: int) -> None:
        """`max_positions`: of the caches that each drafting model keeps, together."""
        self._target = target
        self._store = SuffixStore()
        self._max_positions = max_positions
        self._memory: dict[str, DraftMemory] = {}
        self._warnings: dict[str, str | None] = {}
        self._info: dict[str, dict[str, Any]] = {}
        self._makers: dict[str, Callable[[GenerateRequest], Drafter]] = {
            "ngram": lambda request: NgramDrafter(request.prompt_ids),
            "suffix": lambda request: SuffixDrafter(request.prompt_ids, self._store, request.cache_salt),
            "prediction": lambda request: PredictionDrafter(request.prediction_ids or ()),
        }
        num_layers, path = target.config.num_layers, options.layer_skip
        self.use_layers(default_set(num_layers) if path is None else read_layer_set(path, num_layers))
        if options.draft_model is not None:
            self._use_draft_model(options.draft_model, tokenizer)

    def use_layers(self, layers: LayerSet) -> None:
        """Draft with this set from now on, for `layer_skip`."""
        memory = DraftMemory(self._target, self._max_positions, self._target.config.num_layers - len(layers.skip))
        forward = partial(self._target.forward, skip=frozenset(layers.skip))
        if layers.num_head_tokens is not None:
            head = self._target.narrow_head(layers.num_head_tokens)
            if head is None:
                raise ModelError("num_head_tokens of a layer set needs a model with tied embeddings")
            forward = partial(forward, head=head)
        self._makers["layer_skip"] = partial(self._model_chain, forward, memory)
        self._memory["layer_skip"], self._warnings["layer_skip"] = memory, layers.warning
        worth = None if layers.worth is None else layers.worth.model_dump()
        self._info["layer_skip"] = {"skip": layers.skip, "num_head_tokens": layers.num_head_tokens, "worth": worth}

    def _use_draft_model(self, folder: Path, tokenizer: Tokenizer) -> None:
        draft = load_draft_model(folder, self._target, tokenizer)
        memory = DraftMemory(draft.model, self._max_positions)
        self._makers["draft_model"] = partial(self._model_chain, draft.model.forward, memory)
        self._memory["draft_model"], self._warnings["draft_model"] = memory, draft.warning
        self._info["draft_model"] = {
            "folder": str(folder),
            "step_cost": round(draft.step_cost, 3),
            "weight_bytes": 2 * draft.model.num_parameters,
        }

    @property
    def makers(self) -> Mapping[str, Callable[[GenerateRequest], Drafter]]:
        """By name, the drafters that this engine offers."""
        return self._makers

    @property
    def memory(self) -> Mapping[str, DraftMemory]:
        """By drafter, the caches that lie outside the target's pool."""
        return self._memory

    @property
    def info(self) -> dict[str, dict[str, Any]]:
        """By drafter that a model drafts for: what it is, its memory in bytes, and a warning where it may not pay."""
        return {
            name: {
                **info,
                "cache_bytes": self._memory[name].reserved_bytes,
                "max_cache_bytes": self._memory[name].max_bytes,
                "warning": self._warnings[name],
            }
            for name, info in self._info.items()
        }

    def warning(self, name: str) -> str | None:
        """Why this drafter may not pay here; None when nothing speaks against it."""
        return self._warnings.get(name)

    def check(self, request: GenerateRequest) -> None:
        """InvalidRequest when the plan's drafter is not offered here or lacks what it drafts from."""
        name = request.plan.drafter
        if not request.plan.is_off and name not in self._makers:
            raise InvalidRequest(f"this engine has no drafter {name!r}", param="custom_params.outrider")
        if name == "prediction" and request.prediction_ids is None:
            raise InvalidRequest("the drafter is prediction, but the request has none", param="prediction")

    def make(self, request: GenerateRequest) -> GuardedDrafter | None:
        """The plan's drafter, having seen the prompt; None when the plan is off."""
        if request.plan.is_off:
            return None
        return GuardedDrafter(partial(self._makers[request.plan.drafter], request), self._target.config.vocab_size)

    def _model_chain(self, forward: Forward, memory: DraftMemory, request: GenerateRequest) -> ModelChainDrafter:
        max_tokens = min(request.capacity, memory.context_length)
        vocab_size = self._target.config.vocab_size
        prompt_ids, law, noise_at = request.prompt_ids, request.law, request.noise_at
        return ModelChainDrafter(forward, memory, max_tokens, prompt_ids, law, noise_at, vocab_size)
