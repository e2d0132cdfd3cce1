"""Heads in SGLang's layouts: names and shapes, the round trip, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.config import TOKEN_MAP
from outrider.engine.checkpoint import read_config
from outrider.engine.drafters.eagle_checkpoint import read_head, write_head
from outrider.engine.drafters.eagle_head import EagleHead
from outrider.engine.drafters.eagle_net import Kind, usual_points
from outrider.engine.drafters.medusa import WEIGHTS, read_medusa, write_medusa
from outrider.engine.model import LlamaModel
from outrider.errors import ModelError
from random_heads import random_head, random_medusa
from random_llama import write_random_llama

#: hidden 32, 4 heads of 16, 2 key heads, 48 inside, 64 tokens, of which 40 can be drafted.
EAGLE = {
    "fc.weight": (32, 64), "fc.bias": (32,), "layers.0.self_attn.q_proj.weight": (64, 32),
    "layers.0.self_attn.k_proj.weight": (32, 32), "layers.0.self_attn.v_proj.weight": (32, 32),
    "layers.0.self_attn.o_proj.weight": (32, 64), "layers.0.mlp.gate_proj.weight": (48, 32),
    "layers.0.mlp.up_proj.weight": (48, 32), "layers.0.mlp.down_proj.weight": (32, 48),
    "layers.0.post_attention_layernorm.weight": (32,),
}  # fmt: skip
EAGLE3 = {
    "fc.weight": (32, 96), "midlayer.self_attn.q_proj.weight": (64, 64), "midlayer.self_attn.k_proj.weight": (32, 64),
    "midlayer.self_attn.v_proj.weight": (32, 64), "midlayer.self_attn.o_proj.weight": (32, 64),
    "midlayer.mlp.gate_proj.weight": (48, 32), "midlayer.mlp.up_proj.weight": (48, 32),
    "midlayer.mlp.down_proj.weight": (32, 48), "midlayer.post_attention_layernorm.weight": (32,),
    "midlayer.input_layernorm.weight": (32,), "midlayer.hidden_norm.weight": (32,), "norm.weight": (32,),
    "lm_head.weight": (40, 32), "d2t": (40,), "t2d": (64,),
}  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    write_random_llama(folder, num_layers=8)
    return folder


@pytest.mark.parametrize(("kind", "shapes"), [("eagle", EAGLE), ("eagle3", EAGLE3)])
def test_a_head_is_written_as_sglang_loads_it(target: Path, tmp_path: Path, kind: Kind, shapes: dict) -> None:
    """Exactly these tensors; the config that SGLang asks for; and what is read is what was written."""
    head = random_head(target, kind, range(7, 47))
    write_head(tmp_path, head, {"command": "a"})
    stored = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == shapes
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_hidden_layers"] == 1 and config["tie_word_embeddings"] is False
    assert config["vocab_size"] == 64 and config["hidden_size"] == 32 and config["outrider"]["command"] == "a"
    if kind == "eagle":
        assert config["architectures"] == ["LlamaForCausalLMEagle"] and config["hot_vocab_size"] == 40
        assert torch.load(tmp_path / TOKEN_MAP, weights_only=True).tolist() == list(range(7, 47))
    else:
        assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["draft_vocab_size"] == 40
        # The inputs of layers 2, n/2 and n - 3, which SGLang names by the layers before.
        assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
        assert stored["d2t"].tolist() == [7] * 40 and stored["t2d"].nonzero().flatten().tolist() == list(range(7, 47))
    again = read_head(tmp_path, read_config(target))
    assert again.config.points == head.config.points and again.config.shapes == head.config.shapes
    assert again.token_ids is not None and again.token_ids.tolist() == list(range(7, 47))
    assert again.accuracy == head.accuracy and again.tensors.keys() == head.tensors.keys()
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in head.tensors.items())


def test_public_spellings_are_read(target: Path, tmp_path: Path) -> None:
    """EAGLE-3's layer as `layers.0`, default states, no bias in an EAGLE head, other tensors beside."""
    write_head(tmp_path / "three", random_head(target, "eagle3", range(40)))
    path = tmp_path / "three" / "model.safetensors"
    save_file({n.replace("midlayer.", "layers.0."): t for n, t in load_file(path).items()}, path)
    config = json.loads((path.parent / "config.json").read_text())
    del config["eagle_config"], config["outrider"]
    (path.parent / "config.json").write_text(json.dumps(config))
    assert read_head(path.parent, read_config(target)).config.points == (2, 4, 5)
    write_head(tmp_path / "one", random_head(target, "eagle"))
    path = tmp_path / "one" / "model.safetensors"
    tensors = load_file(path)
    del tensors["fc.bias"]
    save_file(tensors | {"embed_tokens.weight": torch.zeros(64, 32)}, path)
    head = read_head(path.parent, read_config(target))
    assert head.token_ids is None and not head.tensors["fc.bias"].any()


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_head_of_pytorchs_own_file_is_read_with_its_bias(target: Path, tmp_path: Path, kind: Kind) -> None:
    """As most public heads are; it drafts as it says, and comes back as it was read."""
    write_head(tmp_path / "public", random_head(target, kind, range(40)))
    path = tmp_path / "public" / "model.safetensors"
    bias = torch.linspace(-1, 1, 32).half()
    torch.save(load_file(path) | {"fc.bias": bias}, path.with_name("pytorch_model.bin"))
    path.unlink()
    config = json.loads((path.parent / "config.json").read_text())
    (path.parent / "config.json").write_text(json.dumps(config | {"bias": True}))
    head = read_head(path.parent, read_config(target))
    assert torch.equal(head.tensors["fc.bias"], bias.float())
    model = LlamaModel(target)
    states = EagleHead(path.parent, model)._net.start(torch.zeros(1, 96 if kind == "eagle3" else 32))
    assert torch.allclose(states, bias.float() if kind == "eagle3" else torch.zeros(32))
    write_head(tmp_path / "again", head)
    again = read_head(tmp_path / "again", read_config(target))
    assert again.config == head.config and again.tensors.keys() == head.tensors.keys()
    assert kind == "eagle" or json.loads((tmp_path / "again" / "config.json").read_text())["bias"] is True
    path.with_name("pytorch_model.bin").write_bytes(b"half a file")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is damaged"):
        read_head(path.parent, read_config(target))


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_another_models_head_is_refused_with_both_shapes(tmp_path: Path, target: Path, kind: Kind) -> None:
    """Another hidden size, another vocabulary, and a tensor that is not what the config says."""
    other = tmp_path / "other"
    write_random_llama(other, num_layers=8, hidden_size=64)
    write_head(tmp_path / "head", random_head(other, kind, range(40)))
    with pytest.raises(ModelError, match=r"hidden size 64 there and 32 here \(head \[64, 64\], model \[64, 32\]\)"):
        read_head(tmp_path / "head", read_config(target))
    write_head(tmp_path / "head", random_head(target, kind, range(40)))
    path = tmp_path / "head" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"vocab_size": 100}))
    with pytest.raises(ModelError, match=r"vocabulary 100 there and 64 here"):
        read_head(path.parent, read_config(target))
    path.write_text(json.dumps(config | {"intermediate_size": 50}))
    with pytest.raises(ModelError, match=r"has shape \[48, 32\], expected \[50, 32\]"):
        read_head(path.parent, read_config(target))


def write_changed(folder: Path, target: Path, change: dict[str, object]) -> None:
    """A head whose config says something else in these fields."""
    write_head(folder, random_head(target, "eagle3", range(40)))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "is no EAGLE head, expected LlamaForCausalLMEagle"),
        ({"norm_output": True}, "norm_output is not supported"),
        ({"eagle_config": {"norm_before_fc": True}}, "norm_before_fc is not supported"),
        ({"norm_before_fc": True}, "norm_before_fc is not supported"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state false is not supported"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 7]}}, "no inner layers of 8"),
        ({"num_hidden_layers": 2}, "has 1 layer, not 2"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "low_freq_factor is missing"),
    ],
)
def test_what_would_change_the_network_is_refused(
    target: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """Nothing of a config is passed over that this engine does not do."""
    write_changed(tmp_path, target, change)
    with pytest.raises(ModelError, match=message):
        read_head(tmp_path, read_config(target))


def test_biases_of_the_layer_are_refused(target: Path, tmp_path: Path) -> None:
    """By name: passed over, they would make another head of it."""
    write_head(tmp_path, random_head(target, "eagle"))
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"layers.0.self_attn.q_proj.bias": torch.ones(64)}, path)
    with pytest.raises(ModelError, match=r"not supported: layers\.0\.self_attn\.q_proj\.bias"):
        read_head(tmp_path, read_config(target))


def test_medusa_heads_come_back_as_they_were(target: Path, tmp_path: Path) -> None:
    """Names of the published layout; another model's are refused with both shapes."""
    heads = random_medusa(target, range(5, 50))
    write_medusa(tmp_path / "medusa", heads, "toy")
    again = read_medusa(tmp_path / "medusa", read_config(target))
    assert again.accuracy == heads.accuracy and again.tensors.keys() == heads.tensors.keys()
    assert set(again.tensors) == {f"{i}.0.linear.{part}" for i in range(3) for part in ("weight", "bias")}
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in heads.tensors.items())
    write_random_llama(tmp_path / "other", num_layers=2, hidden_size=64)
    with pytest.raises(ModelError, match=r"has shape \[32, 32\], expected \[64, 64\]"):
        read_medusa(tmp_path / "medusa", read_config(tmp_path / "other"))


WRONG_RATES = [[0.5, 0.2, 0.1, 1.5]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": "LlamaForCausalLMEagle3"}, "no EAGLE head"),
        ({"hidden_size": "32"}, r"config\.json: hidden_size must be a positive integer, not '32'"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a positive integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a positive number"),
        ({"rope_theta": [1]}, "rope_theta must be a positive number"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token"),
        ({"eagle_config": [1]}, "eagle_config must be an object"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": 3}}, "layer_ids 3 are no inner layers of 8"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}, "no inner layers of 8"),
        ({"draft_vocab_size": -1}, "draft_vocab_size must be a positive integer"),
        ({"draft_vocab_size": 39}, r"model\.safetensors: tensor d2t has shape \[40\], expected \[39\]"),
        ({"outrider": "none"}, "outrider must be an object"),
        ({"outrider": {"accuracy": 0.5}}, r"outrider\.accuracy must be \[depths\]\[4\]"),
        ({"outrider": {"accuracy": WRONG_RATES}}, r"outrider\.accuracy must hold rates between 0 and 1"),
    ],
)
def test_a_malformed_config_is_refused_by_field(
    target: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """With the file, the field and what was expected; never another kind of error."""
    write_changed(tmp_path, target, change)
    with pytest.raises(ModelError, match=message) as refused:
        read_head(tmp_path, read_config(target))
    assert str(tmp_path) in refused.value.message


@pytest.mark.parametrize(
    ("token_map", "size", "message"),
    [
        (list(range(40)), 41, r"hot_tokens\.pt has shape \[40\], and hot_vocab_size is 41"),
        (list(range(40)), "40", "hot_vocab_size must be a positive integer"),
        ([*range(39), 38], 40, "names a token twice"),
        ([*range(39), 64], 40, "not below the vocabulary of 64"),
        ([0.5] * 40, 40, "must list"),
        ([1, 2], 2, "must list 4 tokens or more"),
        ({"a": 1}, 40, r"hot_tokens\.pt cannot be read"),
    ],
)
def test_a_wrong_token_map_is_refused(
    target: Path, tmp_path: Path, token_map: object, size: object, message: str
) -> None:
    """Its length is what the config says, and it lists tokens of the target, each once."""
    write_head(tmp_path, random_head(target, "eagle", range(40)))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hot_vocab_size": size}))
    torch.save(token_map, tmp_path / TOKEN_MAP)
    with pytest.raises(ModelError, match=message):
        read_head(tmp_path, read_config(target))


def test_malformed_medusa_heads_are_refused(target: Path, tmp_path: Path) -> None:
    """Wrong counts, accuracies and draft tokens, by field; a damaged file by name."""
    write_medusa(tmp_path, random_medusa(target, range(5, 50)), "toy")
    config, weights = tmp_path / "config.json", tmp_path / WEIGHTS
    data, tensors = json.loads(config.read_text()), load_file(weights)
    for change, message in (
        ({"medusa_num_heads": "3"}, "medusa_num_heads must be a positive integer"),
        ({"medusa_num_layers": 2}, "expected medusa_num_layers 1, not 2"),
        ({"medusa_num_heads": 4}, r"medusa_lm_head\.safetensors: tensor 3\.0\.linear\.weight is missing"),
        ({"outrider": {"accuracy": [[0.5, 0.1, 0.1, 0.1]]}}, r"outrider\.accuracy must be \[3\]\[4\]"),
        ({"outrider": {"accuracy": [None] * 3}}, r"outrider\.accuracy must be"),
    ):
        config.write_text(json.dumps(data | change))
        with pytest.raises(ModelError, match=message):
            read_medusa(tmp_path, read_config(target))
    config.write_text(json.dumps(data))
    for wrong, message in (
        (torch.tensor([*range(44), 43]), "token_ids names a token twice"),
        (torch.tensor([*range(44), 64]), "token_ids names a token that is not below the vocabulary of 64"),
        (torch.ones(45), "token_ids has type torch.float32, expected integers"),
        (torch.ones(3, 3, dtype=torch.long), r"token_ids has shape \[3, 3\]"),
    ):
        save_file(tensors | {"token_ids": wrong}, weights)
        with pytest.raises(ModelError, match=message):
            read_medusa(tmp_path, read_config(target))
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"medusa_lm_head\.safetensors is damaged"):
        read_medusa(tmp_path, read_config(target))


def test_a_head_reads_three_states_of_a_small_target_too(tmp_path: Path) -> None:
    """Three in order where there are three layers; a public head that names none needs SGLang's own three."""
    for num_layers in range(3, 40):
        points = usual_points(num_layers)
        assert 0 <= points[0] < points[1] < points[2] < num_layers
        if num_layers >= 7:
            assert points == (2, num_layers // 2, num_layers - 3)
    assert usual_points(1) == (0, 0, 0)
    write_random_llama(tmp_path / "small", num_layers=5)
    write_head(tmp_path / "head", random_head(tmp_path / "small", "eagle3"))
    assert read_head(tmp_path / "head", read_config(tmp_path / "small")).config.points == (2, 3, 4)
    path = tmp_path / "head" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eagle_config": {}}))
    with pytest.raises(ModelError, match="layer_ids is missing, and 5 layers have no usual ones"):
        read_head(tmp_path / "head", read_config(tmp_path / "small"))
