"""What drafters are made from: models, layer sets and earlier answers of one engine; and the names it can offer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from outrider.cost import CostTable
from outrider.engine.drafters import Drafter
from outrider.engine.drafters.draft_memory import DraftMemory
from outrider.engine.drafters.draft_model import load_draft_model
from outrider.engine.drafters.eagle import EXTRA_ROWS, EagleDrafter, EagleSettings
from outrider.engine.drafters.eagle_head import EagleHead
from outrider.engine.drafters.eagle_tree import Accuracy
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.drafters.hybrid import HybridDrafter
from outrider.engine.drafters.layer_skip import LayerSet, default_set, read_layer_set
from outrider.engine.drafters.medusa import MedusaDrafter, MedusaHeads
from outrider.engine.drafters.model_chain import Forward, ModelChainDrafter
from outrider.engine.drafters.ngram import NgramDrafter
from outrider.engine.drafters.prediction import PredictionDrafter
from outrider.engine.drafters.suffix import SuffixDrafter, SuffixStore
from outrider.engine.kv_cache import BLOCK_SIZE, blocks_for
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
    eagle: tuple[Path, ...] = ()
    """Folders of EAGLE and EAGLE-3 heads, one of a kind; they draft as `eagle2` and `eagle3`, the first also
    as `hybrid`."""
    medusa: Path | None = None
    """Folder of Medusa heads."""
    is_int8: bool = False
    """Draft models and heads with weights in 8 bits."""
    is_lossy: bool = False
    """Accept Medusa's drafts by typical acceptance, which changes what is sampled; such an engine is not exact."""
    has_whole_trees: bool = False
    """Heads draft trees to their full depth, whether a step pays or not: for those who measure what steps cost."""


DEFAULT_OPTIONS = DraftOptions()


class DrafterSources:
    """Makes the drafter of each request. ModelError when the options do not suit the target."""

    def __init__(
        self,
        target: LlamaModel,
        tokenizer: Tokenizer,
        options: DraftOptions,
        max_positions: int,
        cost: CostTable | None = None,
    ) -> None:
        """`max_positions`: of the caches that each drafting model keeps, together; `cost`: of draft steps."""
        self._target = target
        self._store = SuffixStore()
        self._max_positions = max_positions
        self._memory: dict[str, DraftMemory] = {}
        self._warnings: dict[str, str | None] = {}
        self._info: dict[str, dict[str, Any]] = {}
        self._digests: dict[str, str] = {}
        self._accuracy: dict[str, Accuracy] = {}
        self._makers: dict[str, Callable[[GenerateRequest], Drafter]] = {
            "ngram": lambda request: NgramDrafter(request.prompt_ids),
            "suffix": self._suffix,
            "prediction": lambda request: PredictionDrafter(request.prediction_ids or ()),
        }
        num_layers, path = target.config.num_layers, options.layer_skip
        self.use_layers(default_set(num_layers) if path is None else read_layer_set(path, num_layers))
        if options.draft_model is not None:
            self._use_draft_model(options.draft_model, tokenizer, is_int8=options.is_int8)
        for folder in options.eagle:
            self._use_eagle(folder, cost, options)
        if options.medusa is not None:
            self._use_medusa(options.medusa, is_int8=options.is_int8)

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
        self._digests["layer_skip"] = _digest(repr((sorted(layers.skip), layers.num_head_tokens)).encode())
        worth = None if layers.worth is None else layers.worth.model_dump()
        self._info["layer_skip"] = {"skip": layers.skip, "num_head_tokens": layers.num_head_tokens, "worth": worth}

    def _use_draft_model(self, folder: Path, tokenizer: Tokenizer, *, is_int8: bool) -> None:
        draft = load_draft_model(folder, self._target, tokenizer, is_int8=is_int8)
        memory = DraftMemory(draft.model, self._max_positions)
        self._digests["draft_model"] = folder_digest(folder, is_int8=is_int8)
        self._makers["draft_model"] = partial(self._model_chain, draft.model.forward, memory)
        self._memory["draft_model"], self._warnings["draft_model"] = memory, draft.warning
        self._info["draft_model"] = {
            "folder": str(folder),
            "step_cost": round(draft.step_cost, 3),
            "weight_bytes": draft.model.packed_bytes,
        }

    def _use_eagle(self, folder: Path, cost: CostTable | None, options: DraftOptions) -> None:
        is_int8 = options.is_int8
        head = EagleHead(folder, self._target, is_int8=is_int8)
        name = "eagle2" if head.kind == "eagle" else "eagle3"
        if name in self._makers:
            raise ModelError(f"{folder}: a head for {name} was given before")
        num_caches = self._max_positions // self._target.config.context_length
        memory = DraftMemory(head, self._max_positions + num_caches * blocks_for(EXTRA_ROWS) * BLOCK_SIZE)
        self._digests[name] = folder_digest(folder, is_int8=is_int8)
        step_cost = head.weight_bytes / self._target.packed_bytes  # as weights are read, where nothing was measured
        if cost is not None and name in (known := cost.with_drafters(self._digests)).drafters:
            step_cost = known.drafters[name].step_s / known.at(1, 1, known.contexts[0])
        settings = EagleSettings(accuracy=head.accuracy, min_gain=0.0 if options.has_whole_trees else step_cost)

        def make(request: GenerateRequest) -> EagleDrafter:
            return EagleDrafter(head, memory, request, settings)

        self._makers[name] = make
        self._memory[name], self._warnings[name] = memory, None
        self._info[name] = {"folder": str(folder), "weight_bytes": head.weight_bytes, "is_int8": is_int8}
        self._accuracy[name] = head.accuracy
        if "hybrid" not in self._makers:
            self._makers["hybrid"] = lambda request: HybridDrafter(make(request), self._suffix(request))
            self._digests["hybrid"], self._info["hybrid"] = self._digests[name], {"head": name}
            self._accuracy["hybrid"] = head.accuracy

    def _use_medusa(self, folder: Path, *, is_int8: bool) -> None:
        heads = MedusaHeads(folder, self._target, is_int8=is_int8)
        self._makers["medusa"] = lambda request: MedusaDrafter(heads, request)
        self._digests["medusa"] = folder_digest(folder, is_int8=is_int8)
        self._info["medusa"] = {"folder": str(folder), "weight_bytes": heads.weight_bytes, "is_int8": is_int8}
        self._accuracy["medusa"] = heads.accuracy

    @property
    def makers(self) -> Mapping[str, Callable[[GenerateRequest], Drafter]]:
        """By name, the drafters that this engine offers."""
        return self._makers

    @property
    def digests(self) -> Mapping[str, str]:
        """By drafter that has weights or layers: of these and their type; its costs are known only for the same."""
        return self._digests

    @property
    def memory(self) -> Mapping[str, DraftMemory]:
        """By drafter, the caches that lie outside the target's pool."""
        return self._memory

    @property
    def info(self) -> dict[str, dict[str, Any]]:
        """By drafter that a model drafts for: what it is, its memory in bytes, how often a head's likeliest token is
        right at each depth, tokens of context beyond which it drafts nothing, and a warning where it may not pay."""
        return {
            name: {
                **info,
                "cache_bytes": self._memory[name].reserved_bytes if name in self._memory else 0,
                "max_cache_bytes": self._memory[name].max_bytes if name in self._memory else 0,
                "warning": self.warning(name),
                "accuracy": [row[0] for row in self._accuracy.get(name, ())],
                "context_length": self._memory[name].context_length if name in self._memory else None,
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

    def _suffix(self, request: GenerateRequest) -> SuffixDrafter:
        key = request.cache_salt if request.plan.learn else ""
        return SuffixDrafter(request.prompt_ids, self._store, key)

    def _model_chain(self, forward: Forward, memory: DraftMemory, request: GenerateRequest) -> ModelChainDrafter:
        max_tokens = min(request.capacity, memory.context_length)
        vocab_size = self._target.config.vocab_size
        prompt_ids, law, noise_at = request.prompt_ids, request.law, request.noise_at
        return ModelChainDrafter(forward, memory, max_tokens, prompt_ids, law, noise_at, vocab_size)


def folder_digest(folder: Path, *, is_int8: bool) -> str:
    """Of what a draft model's or a head's folder holds, and in how many bits it is used."""
    files = sorted(path for ending in ("config.json", "*.safetensors", "*.pt") for path in folder.glob(ending))
    whole = f"int8 {is_int8}"
    for path in files:
        with path.open("rb") as file:
            whole += f" {path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}"
    return _digest(whole.encode())


def _digest(what: bytes) -> str:
    return hashlib.sha256(what).hexdigest()[:16]
