"""Checkpoints of which everything is known: a Markov chain, and drafters that know it but for some states."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from markov import VOCAB, write_markov_checkpoint

#: States 0..7 are for sampling and 8..15 for greedy texts: neither ever leaves its half, so that what the n-gram
#: drafter learnt from sampled texts does not change what it proposes for greedy ones.
HALF = 8
#: States of the greedy half after which the drafters are wrong.
WRONG = (10, 13)
#: The most probable next state has this probability: high enough that a tree always holds the whole greedy chain.
_BEST = 0.8


def two_halves(rng: np.random.Generator) -> np.ndarray:
    """[VOCAB, VOCAB] log probabilities; in each half the most probable transitions form one cycle."""
    log_probs = np.full((VOCAB, VOCAB), -1e4)
    for half in (0, HALF):
        states = half + rng.permutation(HALF)
        for state, best in zip(states, np.roll(states, -1), strict=True):
            row = rng.dirichlet(np.full(HALF, 2.0)) * (1 - _BEST)
            row[best - half] = _BEST + row[best - half]
            log_probs[state, half : half + HALF] = np.log(row)
    return log_probs


def greedy_ids(log_probs: np.ndarray, start: int, num_tokens: int) -> list[int]:
    """The only greedy text after `start`."""
    ids = [start]
    for _ in range(num_tokens):
        ids.append(int(log_probs[ids[-1]].argmax()))
    return ids[1:]


def stand_ins(log_probs: np.ndarray) -> dict[int, int]:
    """Wrong state -> the state that drafters take it for: the target's choice is not among its best four."""
    half = np.arange(HALF, 2 * HALF)
    chosen = {}
    for state in WRONG:
        best = log_probs[state].argmax()
        num_better = [int((log_probs[other] > log_probs[other, best]).sum()) for other in half]
        chosen[state] = int(half[int(np.argmax(num_better))])
        assert max(num_better) >= 4, num_better
    return chosen


def drafted_chain(log_probs: np.ndarray) -> np.ndarray:
    """The chain as the drafters see it."""
    drafted = log_probs.copy()
    for state, taken_for in stand_ins(log_probs).items():
        drafted[state] = log_probs[taken_for]
    return drafted


def histogram(log_probs: np.ndarray, start: int, num_tokens: int, k: int) -> list[int]:
    """Rounds of a greedy text by how many of k drafts they accept, as SGLang counts them: the last may overshoot."""
    drafted = drafted_chain(log_probs)
    counts = [0] * (k + 1)
    # The first token comes from reading the prompt and is the first round's root.
    root, num_emitted = greedy_ids(log_probs, start, 1)[0], 1
    while num_emitted < num_tokens:
        text, draft = greedy_ids(log_probs, root, k + 1), greedy_ids(drafted, root, k)
        num_accepted = next((i for i in range(k) if text[i] != draft[i]), k)
        counts[num_accepted] += 1
        num_emitted += num_accepted + 1
        root = text[num_accepted]
    return counts


def trimmed(counts: list[int]) -> list[int]:
    """Without trailing zeros, as SGLang reports histograms."""
    while counts and counts[-1] == 0:
        counts = counts[:-1]
    return counts


def write_draft_model(folder: Path, log_probs: np.ndarray) -> None:
    """A draft model of the same layout."""
    write_markov_checkpoint(folder, drafted_chain(log_probs))


def write_eagle_head(folder: Path, target: Path, log_probs: np.ndarray) -> None:
    """A head that reads the latest token alone, scaled as the target's final norm does, for the target's own head."""
    folder.mkdir(parents=True)
    config = json.loads((target / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    taken_for = stand_ins(log_probs)
    reads = torch.zeros(VOCAB, VOCAB)
    for state in range(VOCAB):
        reads[taken_for.get(state, state), state] = np.sqrt(VOCAB)
    tensors = {
        "fc.weight": torch.cat([reads, torch.zeros(VOCAB, VOCAB)], dim=1),
        "fc.bias": torch.zeros(VOCAB),
        "layers.0.post_attention_layernorm.weight": torch.ones(VOCAB),
        "layers.0.self_attn.o_proj.weight": torch.zeros(VOCAB, VOCAB),
        "layers.0.mlp.down_proj.weight": torch.zeros(VOCAB, VOCAB),
    }
    for name, rows in (("self_attn.q_proj", 64), ("self_attn.k_proj", 32), ("self_attn.v_proj", 32)):
        tensors[f"layers.0.{name}.weight"] = torch.zeros(rows, VOCAB)
    for name in ("mlp.gate_proj", "mlp.up_proj"):
        tensors[f"layers.0.{name}.weight"] = torch.zeros(64, VOCAB)
    save_file({name: tensor.half().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def write_random_eagle3_head(folder: Path, target: Path, num_drafted: int) -> None:
    """An EAGLE3 head of random weights that drafts every other token of the vocabulary, by its map `d2t`."""
    folder.mkdir(parents=True)
    config = json.loads((target / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "tie_word_embeddings": False}
    # The target has one layer: what the head reads is the input of it.
    config |= {"draft_vocab_size": num_drafted, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1]}}
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(4)
    shapes = {
        "fc.weight": (VOCAB, VOCAB), "lm_head.weight": (num_drafted, VOCAB),
        "midlayer.self_attn.q_proj.weight": (64, 2 * VOCAB), "midlayer.self_attn.k_proj.weight": (32, 2 * VOCAB),
        "midlayer.self_attn.v_proj.weight": (32, 2 * VOCAB), "midlayer.self_attn.o_proj.weight": (VOCAB, 64),
        "midlayer.mlp.gate_proj.weight": (64, VOCAB), "midlayer.mlp.up_proj.weight": (64, VOCAB),
        "midlayer.mlp.down_proj.weight": (VOCAB, 64),
    }  # fmt: skip
    tensors = {name: torch.randn(shape, generator=generator).half() for name, shape in shapes.items()}
    for name in ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm"):
        tensors[f"{name}.weight"] = torch.ones(VOCAB).half()
    tensors["d2t"] = torch.arange(num_drafted)  # what to add to a draft's number: token 2 i for number i
    save_file(tensors, folder / "model.safetensors")
