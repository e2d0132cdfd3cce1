"""Medusa drafting: heads on the target's last state, each for one token further on, in a calibrated tree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from outrider.cost import DRAWN_FROM
from outrider.engine.checkpoint import ModelConfig, Weights, positive, read_json
from outrider.engine.drafters.draft_vocabulary import DraftVocabulary, check_draft_tokens
from outrider.engine.drafters.eagle_tree import TOP_K, Accuracy, accuracy_of, best_shape, chances_of, parents_of
from outrider.engine.linear import pack, pack_int8
from outrider.engine.model import LlamaModel
from outrider.engine.sequence import GenerateRequest
from outrider.errors import ModelError
from outrider.speculation.proposal import NO_DRAFT, PointMass, Proposal, SampledChain, TopKTree
from outrider.speculation.target import SamplingLaw

WEIGHTS = "medusa_lm_head.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class MedusaCheckpoint:
    """Heads as stored: `{i}.0.linear.weight` [h, h] and bias [h]; they share the target's output matrix."""

    tensors: dict[str, torch.Tensor]
    token_ids: torch.Tensor | None
    """int64 [D]: the tokens that they draft; None means all."""
    accuracy: Accuracy
    """[heads][TOP_K]: how often the token of each rank is right."""

    @property
    def num_heads(self) -> int:
        """One drafts the first token, the next one the second, ..."""
        return len(self.accuracy)


def usual_accuracy(num_heads: int) -> Accuracy:
    """Where heads came without calibration."""
    return tuple(tuple(0.5 * 0.6**depth * 0.35**rank for rank in range(TOP_K)) for depth in range(num_heads))


def read_medusa(folder: Path, target: ModelConfig) -> MedusaCheckpoint:
    """ModelError when the folder holds no heads, heads of more than one layer, or of another shape, with both."""
    path, hidden = folder / "config.json", target.hidden_size
    data = read_json(path)
    num_heads = positive(path, data, "medusa_num_heads")
    if data.get("medusa_num_layers", 1) != 1:
        raise ModelError(f"{path}: expected medusa_num_layers 1, not {data['medusa_num_layers']!r}")
    weights, tensors = Weights(folder, WEIGHTS), {}
    for i in range(num_heads):
        for name, shape in ((f"{i}.0.linear.weight", (hidden, hidden)), (f"{i}.0.linear.bias", (hidden,))):
            tensors[name] = weights.take(name, *shape)
        if f"{i}.1.weight" in weights:
            raise ModelError(f"{folder / WEIGHTS}: {i}.1.weight, an output matrix of its own, is not supported")
    token_ids = weights.take_integers("token_ids", -1) if "token_ids" in weights else None
    if token_ids is not None:
        check_draft_tokens(folder / WEIGHTS, "token_ids", token_ids, target.vocab_size)
    return MedusaCheckpoint(tensors, token_ids, accuracy_of(path, data, usual_accuracy(num_heads), num_heads))


def write_medusa(
    folder: Path, heads: MedusaCheckpoint, base_model: str, note: Mapping[str, Any] | None = None
) -> None:
    """In fp16; `note` goes into config.json under `outrider`, beside the accuracies."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.half().contiguous() for name, tensor in heads.tensors.items()}
    if heads.token_ids is not None:
        tensors["token_ids"] = heads.token_ids
    save_file(tensors, folder / WEIGHTS)
    data = {
        "medusa_num_heads": heads.num_heads, "medusa_num_layers": 1, "base_model_name_or_path": base_model,
        "outrider": {**(note or {}), "accuracy": [list(row) for row in heads.accuracy]},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


class MedusaHeads:
    """Packed weights of all heads: one product for them, and one for their tokens."""

    def __init__(self, folder: Path, target: LlamaModel, *, is_int8: bool = False) -> None:
        stored = read_medusa(folder, target.config)
        self.num_heads, self.accuracy = stored.num_heads, stored.accuracy
        self.points = (target.config.num_layers,)
        weight, bias = (
            torch.cat([stored.tensors[f"{i}.0.linear.{name}"] for i in range(self.num_heads)])
            for name in ("weight", "bias")
        )
        self._blocks = pack_int8(weight, bias) if is_int8 else pack(weight, bias, target.placement)
        self.vocabulary = DraftVocabulary(target, stored.token_ids, is_int8=is_int8)
        self.weight_bytes = self._blocks.num_bytes + self.vocabulary.num_bytes

    @torch.inference_mode()
    def logits(self, feature: torch.Tensor, num_heads: int) -> torch.Tensor:
        """feature [1, hidden], before which token t is chosen -> [num_heads, D]: row i is of token t + 1 + i."""
        blocks = self._blocks(feature).view(self.num_heads, -1)[:num_heads]
        return self.vocabulary.logits(feature + F.silu(blocks))


class MedusaDrafter:
    """Has no memory but the last state. Greedy and warm requests get the calibrated tree, hot ones a drawn chain."""

    def __init__(self, heads: MedusaHeads, request: GenerateRequest, *, is_chain: bool = False) -> None:
        """`is_chain`: the likeliest token of each head in place of a tree; only `outrider bench heads` drafts so."""
        self.points = heads.points
        self._heads = heads
        self._request = request
        self._is_chain = is_chain
        law = request.law
        self._law = SamplingLaw(law.temperature, law.top_k, law.top_p, law.min_p)
        self._num_tokens = len(request.prompt_ids)
        self._feature: torch.Tensor | None = None
        self._end = 0
        """The first position without a state."""

    def observe(self, token_id: int) -> None:
        """See `Drafter`."""
        self._num_tokens += 1

    def observe_features(self, start: int, features: torch.Tensor) -> None:
        """See `FeatureDrafter`; only the last position's state is read."""
        if start + features.shape[0] > self._end:
            self._feature, self._end = features[-1:], start + features.shape[0]

    def propose(self, k: int) -> Proposal:
        """A chain where the law is drawn from or trees are off, else a tree; nothing while the state is missing."""
        if self._feature is None or self._end != self._num_tokens - 1:
            return NO_DRAFT
        is_drawn = self._law.temperature >= DRAWN_FROM
        if is_drawn or self._is_chain:
            logits = self._heads.logits(self._feature, min(k, self._heads.num_heads))
            return self._drawn_chain(logits) if is_drawn else PointMass(self._tokens(logits.argmax(dim=-1)))
        return self._tree(k)

    def free(self) -> None:
        """See `Drafter`."""
        self._feature = None

    def _tokens(self, draft_ids: torch.Tensor) -> tuple[int, ...]:
        return tuple(self._heads.vocabulary.tokens(draft_ids.tolist()))

    def _drawn_chain(self, logits: torch.Tensor) -> SampledChain:
        """A head's law knows none of the tokens that the heads before it drew."""
        noise = self._request.noise_at(self._num_tokens - len(self._request.prompt_ids))
        laws = [self._heads.vocabulary.law(row, self._law) for row in logits]
        tokens = tuple(noise.draft(depth, law)[0] for depth, law in enumerate(laws))
        return SampledChain(tokens, torch.stack(laws))

    def _tree(self, k: int) -> TopKTree:
        assert self._feature is not None
        paths = best_shape(self._heads.accuracy, k)
        depth = max(map(len, paths))
        ranked = self._heads.logits(self._feature, depth).topk(TOP_K, dim=-1).indices
        ids = torch.stack([ranked[len(path) - 1, path[-1]] for path in paths])
        return TopKTree(self._tokens(ids), tuple(parents_of(paths)), chances_of(paths, self._heads.accuracy))
