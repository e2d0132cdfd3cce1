"""A draft model of the target's first layers: what both programs load of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from outrider.cli.bench.first_layers import num_first_layers, write_first_layers
from outrider.engine.attention import Segment
from outrider.engine.model import LlamaModel
from outrider.engine.tokenizer import Tokenizer
from random_llama import write_random_llama


@pytest.mark.parametrize("is_sharded", [False, True])
def test_it_is_the_target_without_its_later_layers(tmp_path: Path, is_sharded: bool) -> None:
    """Our engine and Hugging Face find the same logits in it, those of the target that stops there."""
    source, folder = tmp_path / "target", tmp_path / "draft"
    write_random_llama(source, num_layers=3)
    whole = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if is_sharded:
        (source / "model.safetensors").unlink()
        whole.half().save_pretrained(source, max_shard_size="20KB")
        whole.float()
        assert len(list(source.glob("*.safetensors"))) > 1
    write_first_layers(source, folder, 2)
    assert not any(name.startswith("model.layers.2.") for name in load_file(folder / "model.safetensors"))
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
    tokens = (5, 9, 14, 3)
    ours = LlamaModel(folder)
    found = ours.forward([Segment(ours.new_cache(8), tokens, len(tokens))])
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    skipping = LlamaModel(source)
    stopped = skipping.forward([Segment(skipping.new_cache(8), tokens, len(tokens))], skip=frozenset({2}))
    with torch.no_grad():
        torch.testing.assert_close(found, theirs(torch.tensor([tokens])).logits[0], atol=1e-3, rtol=1e-3)
    assert torch.equal(found, stopped)
    assert Tokenizer(folder).vocabulary == Tokenizer(source).vocabulary


@pytest.mark.parametrize(("num_layers", "num_kept"), [(1, 1), (2, 1), (30, 10)])
def test_a_third_is_kept(num_layers: int, num_kept: int) -> None:
    """And one layer at the least."""
    assert num_first_layers(num_layers) == num_kept
