"""A checkpoint whose law is known in closed form: a Markov chain in the Llama layout.

Embedding is the identity, attention and MLP contribute nothing, and the final norm turns a one-hot vector into one of
length sqrt(vocab); the head then holds log P(next | current), so every logit row is a row of the chain.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB = 64
#: Token i is this string's character i.
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
#: The token that ends an answer, where the checkpoint has one.
EOS = VOCAB - 1
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def random_chain(rng: np.random.Generator, num_states: int = VOCAB, sharpness: float = 1.0) -> np.ndarray:
    """P[current, next] over VOCAB tokens, in which the first `num_states` tokens follow one another."""
    logits = np.full((VOCAB, VOCAB), -1e4)
    logits[:, :num_states] = sharpness * rng.normal(size=(VOCAB, num_states))
    return logits


def write_markov_checkpoint(folder: Path, log_probs: np.ndarray) -> None:
    """Write a checkpoint that follows the chain, with a tokenizer of one character per token."""
    folder.mkdir(parents=True, exist_ok=True)
    scale = np.sqrt(VOCAB)
    tensors = {
        "model.embed_tokens.weight": torch.eye(VOCAB),
        "model.norm.weight": torch.ones(VOCAB),
        "lm_head.weight": torch.tensor((log_probs / scale).T.copy()).half(),
    }
    generator = torch.Generator().manual_seed(0)
    layer = "model.layers.0."
    for name, rows in (("q_proj", 64), ("k_proj", 32), ("v_proj", 32)):
        tensors[f"{layer}self_attn.{name}.weight"] = torch.randn(rows, VOCAB, generator=generator)
    for name in ("gate_proj", "up_proj"):
        tensors[f"{layer}mlp.{name}.weight"] = torch.randn(64, VOCAB, generator=generator)
    tensors[f"{layer}self_attn.o_proj.weight"] = torch.zeros(VOCAB, 64)
    tensors[f"{layer}mlp.down_proj.weight"] = torch.zeros(VOCAB, 64)
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{layer}{name}.weight"] = torch.ones(VOCAB)
    save_file({name: t.half().contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    write_tokenizer(folder)


def write_ending_checkpoint(folder: Path, log_probs: np.ndarray) -> None:
    """The same with an end token, and with a tokenizer that knows its tokens' bytes, as real models have them."""
    write_markov_checkpoint(folder, log_probs)
    add_end(folder)


def add_end(folder: Path) -> None:
    """Give a checkpoint with the toy's tokenizer what grammars need: an end token, and tokens as bytes."""
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token_id": EOS}))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def chain_law(log_probs: np.ndarray, temperature: float) -> np.ndarray:
    """P[current, next] at a temperature, from the values that the checkpoint really holds (fp16)."""
    scale = np.sqrt(VOCAB)
    logits = (log_probs / scale).astype(np.float16).astype(np.float64) * scale / temperature
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(ALPHABET)}, unk_token="A"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": VOCAB,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-12,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
