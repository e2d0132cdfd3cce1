"""A random Llama with the toy's tokenizer, on which attention and every layer matter."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from markov import VOCAB, write_tokenizer


def write_random_llama(folder: Path, *, num_layers: int = 6, hidden_size: int = 32, seed: int = 0) -> None:
    """Weights are large enough that the next token depends on the whole text."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=hidden_size, intermediate_size=48, num_hidden_layers=num_layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
        initializer_range=0.2, tie_word_embeddings=False, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).half().save_pretrained(folder)
    write_tokenizer(folder)
