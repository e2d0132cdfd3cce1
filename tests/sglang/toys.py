"""Drafters for the Markov-chain checkpoint: a smaller law of the same layout, and an EAGLE head that knows the chain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from markov import VOCAB, write_markov_checkpoint


def wrong_after(log_probs: np.ndarray, states: Sequence[int]) -> np.ndarray:
    """The same chain, but after these states its most probable token is the target's least probable one."""
    drafted = log_probs.copy()
    num_states = int((log_probs[0] > -1e3).sum())
    for state in states:
        row = drafted[state, :num_states]
        best, worst = row.argmax(), row.argmin()
        row[[best, worst]] = row[[worst, best]]
    return drafted


def write_eagle_head(folder: Path, target: Path, replaced: dict[int, int]) -> None:
    """A head that drafts what the target chooses, but treats state s as `replaced[s]`.

    It reads the token's embedding alone, scaled as the target's final norm does, and has the target's output layer.
    """
    folder.mkdir(parents=True)
    config = json.loads((target / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    reads = torch.zeros(VOCAB, VOCAB)
    for state in range(VOCAB):
        reads[replaced.get(state, state), state] = np.sqrt(VOCAB)
    layer = "layers.0."
    tensors = {
        "fc.weight": torch.cat([reads, torch.zeros(VOCAB, VOCAB)], dim=1),
        "fc.bias": torch.zeros(VOCAB),
        f"{layer}post_attention_layernorm.weight": torch.ones(VOCAB),
        f"{layer}self_attn.o_proj.weight": torch.zeros(VOCAB, VOCAB),
        f"{layer}mlp.down_proj.weight": torch.zeros(VOCAB, VOCAB),
    }
    for name, rows in (("self_attn.q_proj", 64), ("self_attn.k_proj", 32), ("self_attn.v_proj", 32)):
        tensors[f"{layer}{name}.weight"] = torch.zeros(rows, VOCAB)
    for name in ("mlp.gate_proj", "mlp.up_proj"):
        tensors[f"{layer}{name}.weight"] = torch.zeros(64, VOCAB)
    save_file({name: tensor.half().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def write_draft_model(folder: Path, log_probs: np.ndarray, wrong: Sequence[int]) -> None:
    """A draft model that is wrong after the given states."""
    write_markov_checkpoint(folder, wrong_after(log_probs, wrong))
