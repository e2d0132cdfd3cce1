"""Small models that several engine tests share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from markov import VOCAB
from outrider.engine.drafters.sources import DraftOptions
from random_heads import write_random_heads


@pytest.fixture(scope="session")
def attentive_folder(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with the toy's tokenizer, whose next token depends on all that came before."""
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rope_theta=5000.0, tie_word_embeddings=False,
        initializer_range=0.2, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("attentive") / "llama"
    LlamaForCausalLM(config).half().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(toy_folder / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def toy_heads(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> DraftOptions:
    """Random heads of every kind for the toy, which draft its four tokens."""
    folder = tmp_path_factory.mktemp("toy-heads")
    write_random_heads(folder, toy_folder, range(4))
    return DraftOptions(eagle=(folder / "eagle", folder / "eagle3"), medusa=folder / "medusa")
