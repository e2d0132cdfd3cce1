"""Device check of whole models: flashinfer and sdpa on the same requests; prints errors and tokens/s of both.

Prompts, decode rows, and verify steps of chains and trees whose accepted path is kept. Exits 1 on a mismatch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from outrider.engine.attention import Segment
from outrider.engine.attention.choice import flashinfer_on, sdpa_on
from outrider.engine.attention.flashinfer import load_flashinfer
from outrider.engine.cache_pool import CachePool
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.model import LlamaModel
from outrider.engine.placement import Placement
from outrider.errors import SetupError

#: Relative error of bfloat16 logits against float32's, with either attention.
TOLERANCE = 5e-2
NUM_REQUESTS, PROMPT, NUM_STEPS = 8, 512, 20
#: A tree of two branches, and the path that is accepted.
PARENTS, PATH = (-1, -1, 0, 1, 3, 2, 4), (1, 3, 4, 6)
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 1024, 2816, 8, 16, 4, 64, 8192


def write_model(folder: Path) -> None:
    """Random weights of a size that lets attention matter."""
    torch.manual_seed(0)
    heads, kv_heads = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "self_attn.q_proj": (heads, HIDDEN), "self_attn.k_proj": (kv_heads, HIDDEN),
        "self_attn.v_proj": (kv_heads, HIDDEN), "self_attn.o_proj": (HIDDEN, heads),
        "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
    }  # fmt: skip
    tensors = {"model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = torch.ones(HIDDEN)
        for name, shape in shapes.items():
            tensors[f"{prefix}{name}.weight"] = torch.randn(shape) / shape[1] ** 0.5
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def steps(model: LlamaModel) -> Iterator[tuple[str, int, torch.Tensor]]:
    """Kind, rows and logits of every step; as logits come to the CPU, a step is over when it is yielded."""
    pool = CachePool(model.config, 4 * NUM_REQUESTS * PROMPT, model.placement)
    texts = [tuple((17 * i + 5 * j) % VOCAB for j in range(PROMPT - 9 * i)) for i in range(NUM_REQUESTS)]
    caches = [cache for text in texts if (cache := pool.allocate(text, num_expected=3 * PROMPT)) is not None]
    prompts = [Segment(cache, text, 1) for cache, text in zip(caches, texts, strict=True)]
    yield "prompt", sum(map(len, texts)), model.forward(prompts)
    for i in range(NUM_STEPS):
        yield "decode", len(caches), run(model, pool, caches, (i,), None, ())
        yield "chain", 5 * len(caches), run(model, pool, caches, (i, 4, 5, 6, 7), None, range(i % 5))
        yield "tree", 8 * len(caches), run(model, pool, caches, (i, *range(20, 27)), PARENTS, PATH[: i % 5])


def run(
    model: LlamaModel, pool: CachePool, caches: list[SequenceCache], rows: tuple[int, ...],
    parents: tuple[int, ...] | None, path: range | tuple[int, ...],
) -> torch.Tensor:  # fmt: skip
    """One step of all requests, of whose drafts those on the path are kept."""
    assert all(pool.grow(cache, cache.length + len(rows)) for cache in caches)
    logits = model.forward([Segment(cache, rows, len(rows), parents) for cache in caches])
    for cache in caches:
        cache.keep(len(rows) - 1, path)
    return logits


def timed(model: LlamaModel) -> tuple[list[torch.Tensor], dict[str, float]]:
    """Logits of all steps, and rows per second of each kind of step, after one run to warm up."""
    list(steps(model))
    logits: list[torch.Tensor] = []
    num_rows: dict[str, int] = {}
    seconds: dict[str, float] = {}
    started_s = time.perf_counter()
    for kind, count, step_logits in steps(model):
        now_s = time.perf_counter()
        num_rows[kind] = num_rows.get(kind, 0) + count
        seconds[kind] = seconds.get(kind, 0.0) + now_s - started_s
        logits.append(step_logits)
        started_s = time.perf_counter()
    return logits, {kind: num_rows[kind] / seconds[kind] for kind in num_rows}


def check(models: dict[str, LlamaModel], exact: LlamaModel) -> bool:
    """Print a line per model and say whether all agree with the exact one."""
    expected = torch.cat([logits for _, _, logits in steps(exact)])
    results = []
    for name, model in models.items():
        logits, rates = timed(model)
        error = float((torch.cat(logits) - expected).norm() / expected.norm())
        results.append(error <= TOLERANCE)  # false for NaN
        shown = ", ".join(f"{kind} {rate:.0f}" for kind, rate in rates.items())
        print(f"{name:10} rel.error {error:.1e}  tokens/s: {shown}  {'ok' if results[-1] else 'MISMATCH'}")
    return all(results)


def main() -> int:
    try:
        library = load_flashinfer()
    except SetupError as error:
        print(f"model_check: {error.message}", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    half, exact = Placement(device, torch.bfloat16), Placement(device, torch.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        models = {
            "flashinfer": LlamaModel(folder, partial(flashinfer_on, placement=half, library=library)),
            "sdpa": LlamaModel(folder, partial(sdpa_on, placement=half)),
        }
        return 0 if check(models, LlamaModel(folder, partial(sdpa_on, placement=exact))) else 1


if __name__ == "__main__":
    sys.exit(main())
