"""Reads a Hugging Face folder of the Llama, Qwen2 or Qwen3 architecture: its shape and its weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from outrider.errors import ModelError

#: Architectures of one layer structure; Qwen2 adds biases to q, k and v, Qwen3 a norm per head of q and k.
ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a model, from config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    context_length: int
    has_tied_embeddings: bool
    eos_token_ids: tuple[int, ...]
    has_qkv_bias: bool = False
    has_qk_norm: bool = False


def read_config(folder: Path, architectures: tuple[str, ...] = ARCHITECTURES) -> ModelConfig:
    """ModelError names the folder and what is missing, wrong or not supported."""
    data = read_json(folder / "config.json")
    architecture, *others = data.get("architectures") or [data.get("model_type", "none")]
    if others or architecture not in architectures:
        expected = ", ".join(architectures)
        raise ModelError(f"{folder}: architecture {architecture!r} is not supported, expected one of {expected}")
    has_qk_norm = architecture == "Qwen3ForCausalLM"
    _refuse_unsupported(folder, data)
    rope = data.get("rope_parameters") or {}
    try:
        return ModelConfig(
            vocab_size=data["vocab_size"],
            hidden_size=data["hidden_size"],
            intermediate_size=data["intermediate_size"],
            num_layers=data["num_hidden_layers"],
            num_heads=data["num_attention_heads"],
            num_kv_heads=data.get("num_key_value_heads") or data["num_attention_heads"],
            # Qwen3's head size does not follow from the others, so it must be there.
            head_dim=data["head_dim"]
            if has_qk_norm
            else data.get("head_dim") or data["hidden_size"] // data["num_attention_heads"],
            rms_norm_eps=data["rms_norm_eps"],
            rope_theta=data.get("rope_theta") or rope.get("rope_theta") or 10000.0,
            context_length=data["max_position_embeddings"],
            has_tied_embeddings=bool(data.get("tie_word_embeddings", False)),
            eos_token_ids=_eos_token_ids(folder, data),
            has_qkv_bias=architecture == "Qwen2ForCausalLM",
            has_qk_norm=has_qk_norm,
        )
    except KeyError as error:
        raise ModelError(f"{folder}/config.json: {error.args[0]} is missing") from error


def _refuse_unsupported(folder: Path, data: dict[str, Any]) -> None:
    """Anything that would change the forward pass and is not implemented must stop the start."""
    rope = data.get("rope_scaling") or {
        k: v for k, v in (data.get("rope_parameters") or {}).items() if k != "rope_theta"
    }
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    found = {
        "rope scaling": rope_type if rope_type != "default" else None,
        "attention_bias": data.get("attention_bias") or None,
        "mlp_bias": data.get("mlp_bias") or None,
        "hidden_act": data.get("hidden_act") if data.get("hidden_act", "silu") != "silu" else None,
        "sliding window": data.get("sliding_window") if _has_sliding_window(data) else None,
        "quantization_config": "present" if data.get("quantization_config") else None,
    }
    for what, value in found.items():
        if value is not None:
            raise ModelError(f"{folder}/config.json: {what} {value!r} is not supported")


def _has_sliding_window(data: dict[str, Any]) -> bool:
    """Whether some layer would not see the whole context; most Qwen2 files name a window that is switched off."""
    return bool(data.get("use_sliding_window")) or "sliding_attention" in (data.get("layer_types") or ())


def _eos_token_ids(folder: Path, data: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json overrules config.json, as in the Hugging Face libraries."""
    path = folder / "generation_config.json"
    eos = (read_json(path) if path.is_file() else {}).get("eos_token_id", data.get("eos_token_id"))
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (eos,)


def read_json(path: Path) -> dict[str, Any]:
    """ModelError when the file is missing or holds something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return data


class Weights:
    """All tensors of a folder by name, from one safetensors file or from sharded ones with an index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            files = sorted(set(read_json(index).get("weight_map", {}).values()))
        else:
            files = ["model.safetensors"]
        self._tensors: dict[str, torch.Tensor] = {}
        self.num_taken = 0
        """Parameters taken so far."""
        for file in files:
            self._read(folder / file)

    def _read(self, path: Path) -> None:
        if not path.is_file():
            raise ModelError(f"{path} is missing")
        try:
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - safe_open is not a mapping
                    self._tensors[name] = opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is damaged: {error}") from error

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor in float32, removed from here; ModelError when it is missing or has another shape."""
        return self._take(name, shape).float()

    def take_integers(self, name: str, *shape: int) -> torch.Tensor:
        """The same of a tensor of integers, in int64."""
        return self._take(name, shape).long()

    def rename(self, old: str, new: str) -> None:
        """Give all names that begin with `old` the beginning `new`."""
        self._tensors = {
            new + name.removeprefix(old) if name.startswith(old) else name: tensor
            for name, tensor in self._tensors.items()
        }

    def fill(self, name: str, tensor: torch.Tensor) -> None:
        """What to take where the folder has no such tensor."""
        self._tensors.setdefault(name, tensor)

    def _take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            raise ModelError(f"{self._folder}: tensor {name} is missing")
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{self._folder}: tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
        self.num_taken += tensor.numel()
        return tensor
