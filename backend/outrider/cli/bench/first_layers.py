"""A draft model that needs no training: the target's first layers, as a checkpoint that any program can load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from outrider.engine.checkpoint import read_json


def num_first_layers(num_layers: int) -> int:
    """The first third of the target's layers drafts."""
    return max(1, num_layers // 3)


def write_first_layers(source: Path, folder: Path, num_layers: int) -> None:
    """Into a new folder: the model without its later layers, with its embedding, last norm, head and tokenizer."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors = {
        name: tensor
        for path in sorted(source.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < num_layers
    }
    # Without this word Hugging Face does not take the file for one of PyTorch.
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = read_json(source / "config.json") | {"num_hidden_layers": num_layers}
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][:num_layers]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
