"""Reads a Hugging Face folder of the Llama, Qwen2 or Qwen3 architecture: its shape and its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from outrider.errors import ModelError

#: Architectures of one layer structure; Qwen2 adds biases to q, k and v, Qwen3 a norm per head of q and k.
ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
#: Of many public heads; only tensors are read of it.
_PICKLED = "pytorch_model.bin"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How Llama 3.1 and later turn the slow rotary pairs more slowly (rope_type `llama3`)."""

    factor: float
    """By which those whose wave is longer than the old context divided by `low_freq_factor` are slowed; those shorter
    than it divided by `high_freq_factor` stay, and those between change gradually."""
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


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
    rope_scaling: RopeScaling | None = None


def read_config(folder: Path, architectures: tuple[str, ...] = ARCHITECTURES) -> ModelConfig:
    """ModelError names the folder and what is missing, wrong or not supported."""
    path = folder / "config.json"
    data = read_json(path)
    architecture = architecture_of(data)
    if architecture not in architectures:
        expected = ", ".join(architectures)
        raise ModelError(f"{folder}: architecture {architecture!r} is not supported, expected one of {expected}")
    has_qk_norm = architecture == "Qwen3ForCausalLM"
    _refuse_unsupported(folder, data)
    given = partial(positive, path, data)
    num_heads, hidden_size = given("num_attention_heads"), given("hidden_size")
    bases = (data.get("rope_theta"), section(path, data, "rope_parameters").get("rope_theta"), 10000.0)
    return ModelConfig(
        vocab_size=given("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=given("intermediate_size"),
        num_layers=given("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=given("num_key_value_heads") if data.get("num_key_value_heads") else num_heads,
        # Qwen3's head size does not follow from the others, so it must be there.
        head_dim=given("head_dim") if has_qk_norm or data.get("head_dim") else hidden_size // num_heads,
        rms_norm_eps=positive_number(path, data, "rms_norm_eps"),
        rope_theta=positive_number(path, {"rope_theta": next(base for base in bases if base)}, "rope_theta"),
        context_length=given("max_position_embeddings"),
        has_tied_embeddings=bool(data.get("tie_word_embeddings", False)),
        eos_token_ids=_eos_token_ids(folder, data),
        has_qkv_bias=architecture == "Qwen2ForCausalLM",
        has_qk_norm=has_qk_norm,
        rope_scaling=_rope_scaling(path, data),
    )


def architecture_of(data: Mapping[str, Any]) -> str:
    """The one architecture of a config.json, else its model type; what is neither comes as it is written."""
    names = data.get("architectures") or [data.get("model_type", "none")]
    return str(names[0]) if isinstance(names, list) and len(names) == 1 else repr(names)


def positive(path: Path, data: Mapping[str, Any], name: str) -> int:
    """An integer above 0 of this file; ModelError names file and field."""
    value = _given(path, data, name)
    if type(value) is not int or value < 1:
        raise ModelError(f"{path}: {name} must be a positive integer, not {value!r}")
    return value


def positive_number(path: Path, data: Mapping[str, Any], name: str) -> float:
    """The same of any number."""
    value = _given(path, data, name)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ModelError(f"{path}: {name} must be a positive number, not {value!r}")
    return float(value)


def section(path: Path, data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object within this file, empty when it is not there; ModelError names file and field."""
    value = data.get(name)
    if value is not None and not isinstance(value, dict):
        raise ModelError(f"{path}: {name} must be an object, not {value!r}")
    return value or {}


def _given(path: Path, data: Mapping[str, Any], name: str) -> Any:
    if data.get(name) is None:
        raise ModelError(f"{path}: {name} is missing")
    return data[name]


def _refuse_unsupported(folder: Path, data: dict[str, Any]) -> None:
    """Anything that would change the forward pass and is not implemented must stop the start."""
    path = folder / "config.json"
    rope_type, _ = _rope(path, data)
    found = {
        "rope scaling": rope_type if rope_type not in ("default", "llama3") else None,
        "attention_bias": data.get("attention_bias") or None,
        "mlp_bias": data.get("mlp_bias") or None,
        "hidden_act": data.get("hidden_act") if data.get("hidden_act", "silu") != "silu" else None,
        "sliding window": data.get("sliding_window") if _has_sliding_window(data) else None,
        "quantization_config": "present" if data.get("quantization_config") else None,
    }
    for what, value in found.items():
        if value is not None:
            raise ModelError(f"{path}: {what} {value!r} is not supported")


def _rope(path: Path, data: dict[str, Any]) -> tuple[object, dict[str, Any]]:
    """Type and fields: under one name in older files, under another beside the base in newer ones."""
    rope = section(path, data, "rope_scaling") or section(path, data, "rope_parameters")
    return rope.get("rope_type", rope.get("type", "default")), rope


def _rope_scaling(path: Path, data: dict[str, Any]) -> RopeScaling | None:
    rope_type, rope = _rope(path, data)
    if rope_type != "llama3":
        return None
    low, high = positive_number(path, rope, "low_freq_factor"), positive_number(path, rope, "high_freq_factor")
    if high <= low:
        raise ModelError(f"{path}: high_freq_factor {high:g} must be above low_freq_factor {low:g}")
    original = positive(path, rope, "original_max_position_embeddings")
    return RopeScaling(positive_number(path, rope, "factor"), low, high, original)


def _has_sliding_window(data: dict[str, Any]) -> bool:
    """Whether some layer would not see the whole context; most Qwen2 files name a window that is switched off."""
    return bool(data.get("use_sliding_window")) or "sliding_attention" in (data.get("layer_types") or ())


def _eos_token_ids(folder: Path, data: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json overrules config.json, as in the Hugging Face libraries."""
    path = folder / "generation_config.json"
    eos = (read_json(path) if path.is_file() else {}).get("eos_token_id", data.get("eos_token_id"))
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(type(token) is int for token in ids):
        raise ModelError(f"{folder}: eos_token_id must be a token or a list of tokens, not {eos!r}")
    return tuple(ids)


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
    """All tensors of a folder by name, from one safetensors file or from sharded ones with an index; from PyTorch's
    own file where there is no other."""

    def __init__(self, folder: Path, file: str = "model.safetensors") -> None:
        """`file`: where there is no index of sharded ones."""
        index = folder / "model.safetensors.index.json"
        if not (folder / file).is_file() and (folder / _PICKLED).is_file():
            file = _PICKLED
        files = {file}
        if index.is_file():
            files = set(map(str, section(index, read_json(index), "weight_map").values()))
        self._source = index if index.is_file() else folder / file
        self._tensors: dict[str, torch.Tensor] = {}
        self.num_taken = 0
        """Parameters taken so far."""
        for name in sorted(files):
            self._read(folder / name)

    def _read(self, path: Path) -> None:
        if not path.is_file():
            raise ModelError(f"{path} is missing")
        try:
            if path.name == _PICKLED:
                self._tensors |= torch.load(path, map_location="cpu", weights_only=True)
                return
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - safe_open is not a mapping
                    self._tensors[name] = opened.get_tensor(name)
        except (SafetensorError, UnpicklingError, OSError, RuntimeError, EOFError, LookupError, TypeError) as error:
            raise ModelError(f"{path} is damaged: {error}") from error

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor in float32, removed from here; ModelError when it is missing or has another shape."""
        return self._take(name, shape).float()

    def take_integers(self, name: str, *shape: int) -> torch.Tensor:
        """The same of a tensor of integers, in int64; -1 stands for any size."""
        tensor = self._take(name, shape)
        if tensor.is_floating_point() or tensor.dtype == torch.bool:
            raise ModelError(f"{self._source}: tensor {name} has type {tensor.dtype}, expected integers")
        return tensor.long()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        """Names of those that were not taken."""
        return iter(self._tensors)

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
            raise ModelError(f"{self._source}: tensor {name} is missing")
        wanted = tuple(own if size == -1 else size for own, size in zip(tensor.shape, shape, strict=False))
        if tuple(tensor.shape) != wanted or len(shape) != tensor.dim():
            raise ModelError(f"{self._source}: tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
        self.num_taken += tensor.numel()
        return tensor
