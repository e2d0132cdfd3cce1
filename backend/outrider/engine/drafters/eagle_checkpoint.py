"""Checkpoints of EAGLE heads as SGLang loads them: `LlamaForCausalLMEagle` and `LlamaForCausalLMEagle3`."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from outrider.config import TOKEN_MAP
from outrider.engine.checkpoint import (
    ModelConfig,
    Weights,
    architecture_of,
    positive,
    read_config,
    read_json,
    section,
)
from outrider.engine.drafters.draft_vocabulary import check_draft_tokens
from outrider.engine.drafters.eagle_net import HeadConfig, Kind, usual_points
from outrider.engine.drafters.eagle_tree import USUAL_ACCURACY, Accuracy, accuracy_of
from outrider.errors import ModelError

ARCHITECTURES: Mapping[str, Kind] = {"LlamaForCausalLMEagle": "eagle", "LlamaForCausalLMEagle3": "eagle3"}
#: Fields that change the network and are not implemented.
_UNSUPPORTED = ("fc_norm", "use_aux_norm", "norm_output", "input_norm", "norm_before_fc")


@dataclass(frozen=True, slots=True, eq=False)
class HeadCheckpoint:
    """A head as stored."""

    config: HeadConfig
    tensors: dict[str, torch.Tensor]
    """float32, by name, of the shapes in `config.shapes`."""
    token_ids: torch.Tensor | None = None
    """int64 [draft vocabulary]: which of the target's tokens each draft token is; None when they are the same."""
    accuracy: Accuracy = USUAL_ACCURACY
    """[depth][rank], from held-out texts: how often the token of each rank is right; chooses static trees."""


def read_head(folder: Path, target: ModelConfig) -> HeadCheckpoint:
    """ModelError when the folder holds no such head, or one for a target of another shape, with both shapes."""
    path = folder / "config.json"
    data = read_json(path)
    kind = ARCHITECTURES.get(architecture_of(data))
    if kind is None:
        expected = " or ".join(ARCHITECTURES)
        raise ModelError(f"{folder}: architecture {architecture_of(data)!r} is no EAGLE head, expected {expected}")
    own = read_config(folder, tuple(ARCHITECTURES))
    _check_fits(folder, data, own, target)
    if own.num_layers != 1:
        raise ModelError(f"{path}: num_hidden_layers: an EAGLE head has 1 layer, not {own.num_layers}")
    eagle = section(path, data, "eagle_config")
    for name in _UNSUPPORTED:
        if data.get(name) or eagle.get(name):
            raise ModelError(f"{path}: {name} is not supported")
    if eagle.get("use_aux_hidden_state") is False:
        raise ModelError(f"{path}: eagle_config.use_aux_hidden_state false is not supported")
    weights = Weights(folder)
    if biases := [name for name in weights if name.endswith("_proj.bias")]:
        raise ModelError(f"{folder}: a bias of the layer is not supported: {biases[0]}")
    token_ids = _token_ids(folder, data, kind, weights)
    if token_ids is not None:
        field = "draft vocabulary" if kind == "eagle" else "d2t"
        check_draft_tokens(folder, field, token_ids, target.vocab_size)
    size = None if token_ids is None else token_ids.numel()
    points, has_bias = _points(path, eagle, kind, target.num_layers), kind == "eagle" or "fc.bias" in weights
    config = HeadConfig(kind, own, points, size, has_bias)
    if kind == "eagle3":
        weights.rename("layers.0.", "midlayer.")
    else:
        # Heads without this bias exist; SGLang's own layer has one, whatever the config says of `bias`.
        weights.fill("fc.bias", torch.zeros(own.hidden_size))
    tensors = {name: weights.take(name, *shape) for name, shape in config.shapes.items()}
    return HeadCheckpoint(config, tensors, token_ids, accuracy_of(path, data, USUAL_ACCURACY))


def _check_fits(folder: Path, data: Mapping[str, Any], own: ModelConfig, target: ModelConfig) -> None:
    for what, mine, its in (
        ("hidden size", own.hidden_size, target.hidden_size),
        ("hidden size of its target", data.get("target_hidden_size", target.hidden_size), target.hidden_size),
        ("vocabulary", own.vocab_size, target.vocab_size),
    ):
        if mine != its:
            raise ModelError(
                f"{folder}: the head is for another model: {what} {mine} there and {its} here "
                f"(head [{own.vocab_size}, {own.hidden_size}], model [{target.vocab_size}, {target.hidden_size}])"
            )


def _points(path: Path, eagle: Mapping[str, Any], kind: Kind, num_layers: int) -> tuple[int, ...]:
    """SGLang names a layer whose output is read, which the next layer takes in."""
    if kind == "eagle":
        return (num_layers,)
    name = "eagle_aux_hidden_state_layer_ids"
    layer_ids = eagle.get(name)
    if layer_ids is None:
        # What SGLang takes then; of fewer layers that is not three states in order, and not what a head here reads.
        if usual_points(num_layers) != (2, num_layers // 2, num_layers - 3):
            raise ModelError(f"{path}: eagle_config.{name} is missing, and {num_layers} layers have no usual ones")
        return usual_points(num_layers)
    is_list = isinstance(layer_ids, list) and len(layer_ids) > 0
    if not is_list or not all(type(i) is int and -1 <= i < num_layers - 1 for i in layer_ids):
        raise ModelError(f"{path}: eagle_config.{name} {layer_ids} are no inner layers of {num_layers}")
    return tuple(i + 1 for i in layer_ids)


def _token_ids(folder: Path, data: Mapping[str, Any], kind: Kind, weights: Weights) -> torch.Tensor | None:
    path = folder / "config.json"
    if kind == "eagle3":
        if data.get("draft_vocab_size") is None:
            return None
        size = positive(path, data, "draft_vocab_size")
        return torch.arange(size) + weights.take_integers("d2t", size)
    if data.get("hot_vocab_size") is None:
        return None
    size = positive(path, data, "hot_vocab_size")
    try:
        token_ids = torch.as_tensor(torch.load(folder / TOKEN_MAP, weights_only=True))
    except (OSError, RuntimeError, ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise ModelError(f"{folder / TOKEN_MAP} cannot be read: {error}") from error
    if token_ids.shape != (size,):
        raise ModelError(f"{folder / TOKEN_MAP} has shape {list(token_ids.shape)}, and hot_vocab_size is {size}")
    return token_ids if token_ids.is_floating_point() else token_ids.long()


def write_head(folder: Path, head: HeadCheckpoint, note: Mapping[str, Any] | None = None) -> None:
    """In fp16, for this engine and for SGLang alike; `note` goes into config.json under `outrider`, which SGLang does
    not read, beside the accuracies."""
    folder.mkdir(parents=True, exist_ok=True)
    config, c = head.config, head.config.model
    data: dict[str, Any] = {
        "architectures": [next(name for name, kind in ARCHITECTURES.items() if kind == config.kind)],
        "model_type": "llama", "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size,
        "num_hidden_layers": 1, "num_attention_heads": c.num_heads, "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim, "rms_norm_eps": c.rms_norm_eps, "rope_theta": c.rope_theta,
        "max_position_embeddings": c.context_length, "vocab_size": c.vocab_size, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "float16",
    }  # fmt: skip
    if c.rope_scaling is not None:
        data["rope_scaling"] = {"rope_type": "llama3", **asdict(c.rope_scaling)}
    tensors = {name: tensor.half() for name, tensor in head.tensors.items()}
    if config.kind == "eagle3":
        data["draft_vocab_size"] = config.draft_vocab_size
        data["target_hidden_size"] = c.hidden_size
        if config.has_fuse_bias:
            data["bias"] = True
        data["eagle_config"] = {
            "eagle_aux_hidden_state_layer_ids": [point - 1 for point in config.points],
            "use_aux_hidden_state": True,
        }
        if head.token_ids is not None:
            tensors["d2t"] = head.token_ids - torch.arange(head.token_ids.numel())
            tensors["t2d"] = torch.zeros(c.vocab_size, dtype=torch.bool).index_fill_(0, head.token_ids, True)
    elif head.token_ids is not None:
        data["hot_vocab_size"] = head.token_ids.numel()
        torch.save(head.token_ids, folder / TOKEN_MAP)
    data["outrider"] = {**(note or {}), "accuracy": [list(row) for row in head.accuracy]}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
