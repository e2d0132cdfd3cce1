"""Attention of CPU lanes against a dense computation that masks by definition."""

from __future__ import annotations

import torch

from outrider.sglang_plugin.layout import Rows, attend, branch_rows, causal_rows, decode_rows, tree_rows

NUM_HEADS, NUM_KV_HEADS, DIM, NUM_SLOTS = 6, 2, 8, 64
SCALE = 0.3


def tables(*lengths: int) -> list[torch.Tensor]:
    """A row of the request table per request: slots all over the buffer, no two alike."""
    slots = torch.randperm(NUM_SLOTS, generator=torch.Generator().manual_seed(1)).int()
    return [row for row in slots[: sum(lengths)].split(list(lengths))]


def dense(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """One query row [H, D] that sees these slots."""
    group = NUM_HEADS // NUM_KV_HEADS
    key, value = (buffer[slots.long()].repeat_interleave(group, dim=1) for buffer in (keys, values))
    weights = (torch.einsum("hd,shd->hs", queries, key) * SCALE).softmax(dim=-1)
    return torch.einsum("hs,shd->hd", weights, value)


def check(plan: list[Rows], seen: list[torch.Tensor]) -> None:
    """`seen[i]` holds the slots that row i may see."""
    torch.manual_seed(0)
    queries = torch.randn(len(seen), NUM_HEADS, DIM)
    keys, values = torch.randn(2, NUM_SLOTS, NUM_KV_HEADS, DIM)
    out = attend(queries, keys, values, plan, SCALE)
    expected = torch.stack([dense(q, keys, values, slots) for q, slots in zip(queries, seen, strict=True)])
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_a_decoding_row_sees_its_request() -> None:
    """Requests of different lengths, each its own tokens only."""
    rows = tables(8, 8, 8)
    lengths = [1, 8, 5]
    check(decode_rows(rows, lengths), [row[:n] for row, n in zip(rows, lengths, strict=True)])


def test_new_rows_see_the_prefix_and_each_other_backwards() -> None:
    """Whole prompts, chunks after a prefix, and single tokens, in one batch."""
    rows = tables(8, 9, 6)
    prefixes, news = [0, 4, 5], [6, 5, 1]
    seen = [row[: p + i + 1] for row, p, n in zip(rows, prefixes, news, strict=True) for i in range(n)]
    check(causal_rows(rows, prefixes, news), seen)


def test_a_tree_s_row_sees_the_prefix_and_its_ancestors() -> None:
    """Two different trees; a sibling is not seen."""
    rows = tables(9, 7)
    prefixes = [5, 2]
    trees = torch.eye(4, dtype=torch.bool).repeat(2, 1, 1)
    for b, pairs in enumerate([[(1, 0), (2, 0), (3, 0), (3, 1)], [(1, 0), (2, 0), (2, 1), (3, 0)]]):
        for row, column in pairs:
            trees[b, row, column] = True
    seen = [
        torch.cat([row[:p], row[p : p + 4][tree[node]]])
        for row, p, tree in zip(rows, prefixes, trees, strict=True)
        for node in range(4)
    ]
    check(tree_rows(rows, prefixes, trees), seen)


def test_a_branch_sees_the_prefix_and_itself_up_to_the_step() -> None:
    """Step by step, for several branches and for one."""
    for topk, num_steps in ((3, 3), (1, 4)):
        rows = tables(4 + topk * num_steps, 2 + topk * num_steps)
        prefixes = [4, 2]
        for step in range(num_steps - 1):
            seen = [
                torch.cat([row[:p], row[p + b * num_steps : p + b * num_steps + step + 1]])
                for row, p in zip(rows, prefixes, strict=True)
                for b in range(topk)
            ]
            check(branch_rows(rows, prefixes, topk, num_steps, step), seen)
