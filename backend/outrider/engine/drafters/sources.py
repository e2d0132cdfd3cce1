"""What drafters are made from: models, layer sets and earlier answers of one engine; and the names it can offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from outrider.engine.drafters import Drafter
from outrider.engine.drafters.draft_model import load_draft_model
from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.drafters.layer_skip import default_skip, read_skip
from outrider.engine.drafters.model_chain import Forward, ModelChainDrafter
from outrider.engine.drafters.ngram import NgramDrafter
from outrider.engine.drafters.prediction import PredictionDrafter
from outrider.engine.drafters.suffix import SuffixDrafter, SuffixStore
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import GenerateRequest
from outrider.engine.tokenizer import Tokenizer
from outrider.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """What an engine's drafters need beyond the target."""

    draft_model: Path | None = None
    """Folder of a smaller model with the target's tokenizer; None means that `draft_model` is not offered."""
    layer_skip: Path | None = None
    """Layer set for `layer_skip`; None takes the default set."""


DEFAULT_OPTIONS = DraftOptions()


class DrafterSources:
    """Makes the drafter of each request. ModelError when the options do not suit the target."""

    def __init__(self, target: LlamaModel, tokenizer: Tokenizer, options: DraftOptions) -> None:
        self._target = target
        self._store = SuffixStore()
        num_layers = target.config.num_layers
        skip = default_skip(num_layers) if options.layer_skip is None else read_skip(options.layer_skip, num_layers)
        self._makers: dict[str, Callable[[GenerateRequest], Drafter]] = {
            "ngram": lambda request: NgramDrafter(request.prompt_ids),
            "suffix": lambda request: SuffixDrafter(request.prompt_ids, self._store, request.cache_salt),
            "prediction": lambda request: PredictionDrafter(request.prediction_ids or ()),
            "layer_skip": partial(self._model_chain, target, partial(target.forward, skip=skip)),
        }
        if options.draft_model is not None:
            model = load_draft_model(options.draft_model, target, tokenizer)
            self._makers["draft_model"] = partial(self._model_chain, model, model.forward)

    @property
    def makers(self) -> Mapping[str, Callable[[GenerateRequest], Drafter]]:
        """By name, the drafters that this engine offers."""
        return self._makers

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

    def _model_chain(self, model: LlamaModel, forward: Forward, request: GenerateRequest) -> ModelChainDrafter:
        max_tokens = min(request.capacity, model.config.context_length)
        cache, vocab_size = model.new_cache(max_tokens), self._target.config.vocab_size
        prompt_ids, law, noise_at = request.prompt_ids, request.law, request.noise_at
        return ModelChainDrafter(forward, cache, max_tokens, prompt_ids, law, noise_at, vocab_size)
