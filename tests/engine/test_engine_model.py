"""The forward pass against an independent implementation, and rollback of the cache."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from outrider.engine.attention import Segment
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.linear import has_fbgemm, pack
from outrider.engine.model import LlamaModel
from outrider.errors import ModelError


@pytest.fixture(scope="module")
def random_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with grouped queries and an untied head, in two shards."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, rope_theta=5000.0, tie_word_embeddings=False,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).half().save_pretrained(folder, max_shard_size="40KB")
    assert (folder / "model.safetensors.index.json").is_file()
    return folder


def reference_logits(folder: Path, tokens: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def test_logits_equal_the_reference_s(random_llama: Path) -> None:
    """Chunked rows of several sequences in one batch give the logits of each sequence alone."""
    model = LlamaModel(random_llama)
    a, b = [5, 9, 2, 77, 31, 8, 60], [1, 2, 3, 4]
    cache_a, cache_b = SequenceCache(model.config, 16), SequenceCache(model.config, 16)
    first = model.forward([Segment(cache_a, tuple(a[:3]), 0), Segment(cache_b, tuple(b), 1)])
    second = model.forward([Segment(cache_a, tuple(a[3:]), 4)])
    torch.testing.assert_close(first[0], reference_logits(random_llama, b)[-1], atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(second, reference_logits(random_llama, a)[3:], atol=2e-4, rtol=1e-3)


def test_rejected_rows_leave_no_trace(random_llama: Path) -> None:
    """After rollback, a continuation is what it would have been without the rejected tokens."""
    model = LlamaModel(random_llama)
    cache = SequenceCache(model.config, 16)
    model.forward([Segment(cache, (5, 9, 2), 1)])
    model.forward([Segment(cache, (77, 11, 12, 13), 4)])
    cache.truncate(4)  # 77 was accepted, the other three were not
    found = model.forward([Segment(cache, (31, 8), 2)])
    torch.testing.assert_close(found, reference_logits(random_llama, [5, 9, 2, 77, 31, 8])[-2:], atol=2e-4, rtol=1e-3)


SHAPE = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rope_theta": 5000.0,
}  # fmt: skip
QWEN: dict[str, tuple[type[PreTrainedModel], PreTrainedConfig]] = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=False)),
    "qwen2 tied": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=False)),
    "qwen3 tied": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True)),
}


def write_qwen(folder: Path, name: str) -> None:
    """A random checkpoint in shards, whose norms and biases are random too: fresh ones are all 1 and 0."""
    kind, config = QWEN[name]
    torch.manual_seed(1)
    model = kind(config)
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data = torch.randn_like(parameter) * 0.5 + ("norm" in parameter_name)
    model.half().save_pretrained(folder, max_shard_size="40KB")


@pytest.mark.parametrize("name", QWEN)
def test_qwen_logits_equal_the_reference_s(tmp_path: Path, name: str) -> None:
    """Biases and norms per head take part, tied or not: chunks of two sequences give each one's own logits."""
    write_qwen(tmp_path, name)
    model = LlamaModel(tmp_path)
    a, b = [5, 9, 2, 77, 31, 8, 60], [1, 2, 3, 4]
    cache_a, cache_b = SequenceCache(model.config, 16), SequenceCache(model.config, 16)
    first = model.forward([Segment(cache_a, tuple(a[:3]), 0), Segment(cache_b, tuple(b), 4)])
    second = model.forward([Segment(cache_a, tuple(a[3:]), 4)])
    torch.testing.assert_close(first, reference_logits(tmp_path, b), atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(second, reference_logits(tmp_path, a)[3:], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
def test_llama_3_s_slower_rotation_equals_the_reference_s(random_llama: Path, tmp_path: Path, where: str) -> None:
    """Wherever files state it, with pairs that are slowed, kept, and between; without it logits differ."""
    fields = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    fields["original_max_position_embeddings"] = 32
    shutil.copytree(random_llama, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    data = json.loads(path.read_text())
    del data["rope_parameters"]
    data |= (
        {"rope_theta": 5000.0, "rope_scaling": fields}
        if where == "rope_scaling"
        else {"rope_parameters": fields | {"rope_theta": 5000.0}}
    )
    path.write_text(json.dumps(data))
    tokens = [5, 9, 2, 77, 31, 8, 60, 12] * 8
    found, plain = (
        model.forward([Segment(SequenceCache(model.config, 128), tuple(tokens), len(tokens))])
        for model in (LlamaModel(tmp_path), LlamaModel(random_llama))
    )
    torch.testing.assert_close(found, reference_logits(tmp_path, tokens), atol=2e-4, rtol=1e-3)
    assert (found - plain).abs().max() > 1e-3


UNSUPPORTED = [
    ("qwen2", {"use_sliding_window": True, "sliding_window": 64}, "sliding window 64"),
    ("qwen2", {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 32}, "sliding window 32"),
    ("qwen3", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
    ("qwen3", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
    ("qwen3", {"attention_bias": True}, "attention_bias"),
    ("qwen3", {"head_dim": None}, "head_dim is missing"),
    ("qwen2", {"architectures": ["Qwen2MoeForCausalLM"]}, "Qwen2MoeForCausalLM"),
]


@pytest.mark.parametrize(("name", "fields", "said"), UNSUPPORTED, ids=[said for _, _, said in UNSUPPORTED])
def test_settings_that_change_the_forward_pass_are_refused(
    tmp_path: Path, name: str, fields: dict[str, Any], said: str
) -> None:
    """A checkpoint that would be computed wrongly is refused before its weights are read, by the setting's name."""
    write_qwen(tmp_path, name)
    path = tmp_path / "config.json"
    data = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    with pytest.raises(ModelError, match=re.escape(said)):
        LlamaModel(tmp_path)


@pytest.mark.model
def test_the_real_model_agrees_with_the_reference(model_folder: Path) -> None:
    """On real weights the two implementations give the same next tokens and nearly the same logits."""
    model = LlamaModel(model_folder)
    tokens = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308]
    found = model.forward([Segment(SequenceCache(model.config, 16), tuple(tokens), len(tokens))])
    expected = reference_logits(model_folder, tokens)
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=5e-3)
    assert found.argmax(-1).tolist() == expected.argmax(-1).tolist()


def test_packed_weights_compute_the_product() -> None:
    """Packing rounds weights to fp16 and nothing else; weights that fp16 cannot hold stay as they are."""
    weight, x = torch.randn(33, 20).half().float(), torch.randn(5, 20)
    torch.testing.assert_close(pack(weight)(x), x @ weight.T, atol=1e-4, rtol=1e-4)
    large = weight * 1e6
    torch.testing.assert_close(pack(large)(x), x @ large.T)
    bias = torch.randn(33)
    torch.testing.assert_close(pack(weight, bias)(x), x @ weight.T + bias, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(pack(large, bias)(x), x @ large.T + bias)
    assert isinstance(has_fbgemm(), bool)
