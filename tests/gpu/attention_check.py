"""Device check: flashinfer and sdpa on the same random requests; prints errors and rows/s, exits 1 on a mismatch."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from outrider.engine.attention.flashinfer import (
    FlashInferAttention,
    FlashInferKernels,
    load_flashinfer,
)
from outrider.engine.attention.flashinfer_layout import (
    PagedRows,
    flatten_masks,
    pack_masks,
    rotary_positions,
    visible,
)
from outrider.engine.attention.rotary import rotation_table
from outrider.engine.checkpoint import ModelConfig
from outrider.engine.kv_cache import Pages
from outrider.engine.placement import Placement
from outrider.errors import SetupError

#: Relative error of fp16 attention against float32; a wrong mask or page is off by more than a tenth.
TOLERANCE = 3e-3
REPEATS = 20
CONTEXT = 4096
#: Query, key and value of every sequence as sdpa takes them, and what each row sees.
Dense = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="attention_check", description=__doc__)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--page-sizes", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def model_shape(options: argparse.Namespace) -> ModelConfig:
    return ModelConfig(
        vocab_size=1, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=options.heads,
        num_kv_heads=options.kv_heads, head_dim=options.head_dim, rms_norm_eps=1e-5, rope_theta=1e4,
        context_length=CONTEXT, has_tied_embeddings=False, eos_token_ids=(),
    )  # fmt: skip


def random_batches(draw: random.Random, page_size: int) -> dict[str, list[PagedRows]]:
    """Requests as a step has them: single rows, verify steps of chains and trees, a prompt, and all together."""
    num_pages = 80 * CONTEXT // page_size
    free = draw.sample(range(num_pages), num_pages)

    def rows(count: int, parents: tuple[int, ...] | None = None) -> PagedRows:
        start = draw.randint(256, CONTEXT - count)
        pages = tuple(free.pop() for _ in range(-(-(start + count) // page_size)))
        return PagedRows(pages, start, count, parents)

    def tree(num_nodes: int) -> PagedRows:
        return rows(num_nodes + 1, tuple(draw.randint(-1, i - 1) for i in range(num_nodes)))

    decode = [rows(1) for _ in range(32)]
    chain = [rows(draw.randint(2, 9)) for _ in range(16)]
    trees = [tree(draw.randint(3, 63)) for _ in range(16)]
    prompt = [rows(512), rows(300)]
    return {
        "decode": decode,
        "chain": chain,
        "tree": trees,
        "prompt": prompt,
        "mixed": [*trees[:5], *decode[:7], *chain[:5], prompt[1], *trees[5:8]],
    }


def dense_inputs(
    config: ModelConfig, batch: list[PagedRows], qkv: torch.Tensor, turns: torch.Tensor, pages: Pages
) -> Dense:
    """Every sequence by itself, fp16: rows rotated here, prefix gathered from the pages by their list."""
    heads = qkv.view(len(qkv), -1, config.head_dim)
    turned = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    turned = turned * turns[rotary_positions(batch).to(turns.device)].unsqueeze(1)
    rotated = torch.view_as_real(turned).flatten(-2).half()
    q, k, v = (
        x.split([r.count for r in batch])
        for x in (
            rotated[:, : config.num_heads],
            rotated[:, config.num_heads : -config.num_kv_heads],
            heads[:, -config.num_kv_heads :],
        )
    )
    dense: Dense = []
    for rows, query, key, value in zip(batch, q, k, v, strict=True):
        cached = [entries[list(rows.pages)].flatten(0, 1)[: rows.start] for entries in pages]
        keys, values = torch.cat([cached[0], key]), torch.cat([cached[1], value])
        mask = visible(rows).to(qkv.device)
        dense.append((*(x.transpose(0, 1).unsqueeze(0).contiguous() for x in (query, keys, values)), mask))
    return dense


def sdpa(dense: Dense, dtype: torch.dtype) -> torch.Tensor:
    """[R, heads * head_dim]: one call per sequence, as on the CPU."""
    outputs = []
    for query, keys, values, mask in dense:
        out = F.scaled_dot_product_attention(
            query.to(dtype), keys.to(dtype), values.to(dtype), attn_mask=mask, enable_gqa=True
        )
        outputs.append(out[0].transpose(0, 1).flatten(1))
    return torch.cat(outputs)


def median_s(run: Callable[[], object]) -> float:
    for _ in range(3):
        run()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def check_packing(library: Any, batch: list[PagedRows]) -> bool:
    """Whether our packed masks and offsets are the ones that flashinfer makes."""
    flat, indptr = flatten_masks(batch)
    packed, byte_indptr = pack_masks(flat, indptr)
    theirs, their_indptr = library.segment_packbits(flat.cuda(), indptr.cuda(), bitorder="little")
    is_equal = torch.equal(theirs.cpu(), packed) and torch.equal(their_indptr.cpu(), byte_indptr)
    print(f"packed masks equal flashinfer's: {is_equal}")
    return is_equal


def check_batch(
    kernels: FlashInferKernels, name: str, batch: list[PagedRows], turns: torch.Tensor, pages: Pages
) -> bool:
    """Run one batch both ways, print a line, and say whether they agree."""
    config, num_rows = kernels.config, sum(rows.count for rows in batch)
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    qkv = torch.randn(num_rows, width, device="cuda", dtype=torch.float16)
    for entries in pages:
        entries.normal_()
    dense = dense_inputs(config, batch, qkv, turns, pages)
    planned_at = time.perf_counter()
    attend = FlashInferAttention(kernels, batch, turns, [pages])
    torch.cuda.synchronize()
    plan_s = time.perf_counter() - planned_at
    found, expected = attend(0, qkv).float(), sdpa(dense, torch.float32)
    error = float((found - expected).norm() / expected.norm())
    largest = float((found - expected).abs().max())
    flash_s, sdpa_s = median_s(lambda: attend(0, qkv)), median_s(lambda: sdpa(dense, torch.float16))
    is_equal = error <= TOLERANCE  # false for NaN
    print(
        f"{name:8} {pages[0].shape[1]:5} {num_rows:6} {error:9.1e} {largest:9.1e} {plan_s * 1e3:8.2f}"
        f" {num_rows / flash_s:12.0f} {num_rows / sdpa_s:12.0f}  {'ok' if is_equal else 'MISMATCH'}"
    )
    return is_equal


def check(options: argparse.Namespace, library: Any) -> bool:
    config, draw = model_shape(options), random.Random(options.seed)
    torch.manual_seed(options.seed)
    turns = rotation_table(config).cuda()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, flashinfer {library.__version__}")
    print(
        f"{config.num_heads} heads, {config.num_kv_heads} kv heads of {config.head_dim}, fp16, one layer; {REPEATS=}"
    )
    print("batch     page   rows rel.error max.error  plan ms flashinfer/s       sdpa/s  (rows per second)")
    kernels = FlashInferKernels(library, config, Placement(torch.device("cuda"), torch.float16))
    results = []
    for page_size in options.page_sizes:
        batches = random_batches(draw, page_size)
        shape = (80 * CONTEXT // page_size, page_size, config.num_kv_heads, config.head_dim)
        pages = tuple(torch.empty(shape, dtype=torch.float16, device="cuda") for _ in range(2))
        for name, batch in batches.items():
            results.append(check_batch(kernels, name, batch, turns, pages))
    results.append(check_packing(library, batches["tree"]))
    return all(results)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        library = load_flashinfer()
    except SetupError as error:
        print(f"attention_check: {error.message}", file=sys.stderr)
        return 2
    return 0 if check(options, library) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
