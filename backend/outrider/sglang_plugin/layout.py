"""What each query row of a forward may see: key/value slots and masks per request, and attention over them.

Letters in shapes: T query rows, S visible slots, N tree nodes per request with the root, H query and G key/value
heads. A request's slots stand in a row of SGLang's request table, in the order of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive query rows of one request."""

    num_rows: int
    slots: torch.Tensor
    """[S] int64."""
    mask: torch.Tensor | None
    """[num_rows, S] bool, true where a row may look. None: one row that sees all, or a triangle."""


def decode_rows(table_rows: Sequence[torch.Tensor], lengths: Sequence[int]) -> list[Rows]:
    """One row per request, which sees all of its `lengths[i]` tokens."""
    return [Rows(1, row[:length].long(), None) for row, length in zip(table_rows, lengths, strict=True)]


def causal_rows(table_rows: Sequence[torch.Tensor], prefixes: Sequence[int], news: Sequence[int]) -> list[Rows]:
    """`news[i]` rows per request after `prefixes[i]` cached tokens; each sees the prefix and rows up to itself."""
    plan = []
    for row, prefix, new in zip(table_rows, prefixes, news, strict=True):
        is_simple = new == 1 or prefix == 0
        mask = None if is_simple else torch.ones(new, prefix + new, dtype=torch.bool).tril_(prefix)
        plan.append(Rows(new, row[: prefix + new].long(), mask))
    return plan


def tree_rows(table_rows: Sequence[torch.Tensor], prefixes: Sequence[int], trees: torch.Tensor) -> list[Rows]:
    """N rows per request after its prefix, of which each sees the prefix and, by `trees` [B, N, N], its ancestors."""
    num_nodes = trees.shape[-1]
    plan = []
    for row, prefix, tree in zip(table_rows, prefixes, trees, strict=True):
        mask = torch.cat([torch.ones(num_nodes, prefix, dtype=torch.bool), tree.bool()], dim=1)
        plan.append(Rows(num_nodes, row[: prefix + num_nodes].long(), mask))
    return plan


def branch_rows(
    table_rows: Sequence[torch.Tensor], prefixes: Sequence[int], topk: int, num_steps: int, step: int
) -> list[Rows]:
    """A row per branch while drafting: it sees the prefix and its own branch up to `step`, counted from 0.

    The slots of branch b stand in columns prefix + b * num_steps onwards.
    """
    columns = torch.arange(topk)[:, None] * num_steps + torch.arange(step + 1)
    own = torch.eye(topk, dtype=torch.bool).repeat_interleave(step + 1, dim=1)
    plan = []
    for row, prefix in zip(table_rows, prefixes, strict=True):
        slots = torch.cat([row[:prefix], row[prefix + columns.flatten()]]).long()
        mask = torch.cat([torch.ones(topk, prefix, dtype=torch.bool), own], dim=1) if topk > 1 else None
        plan.append(Rows(topk, slots, mask))
    return plan


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: Sequence[Rows], scale: float
) -> torch.Tensor:
    """queries [T, H, D], buffers [slots, G, D] and [slots, G, Dv] -> [T, H, Dv]."""
    out = queries.new_empty(*queries.shape[:2], values.shape[-1])
    start = 0
    for rows in plan:
        stop = start + rows.num_rows
        key, value = keys[rows.slots].transpose(0, 1), values[rows.slots].transpose(0, 1)
        if rows.num_rows == 1:
            # Query heads of one group are rows to their key/value head, which so needs no copies.
            query = queries[start].view(key.shape[0], -1, queries.shape[-1])
            out[start] = scaled_dot_product_attention(query, key, value, scale=scale).reshape(out.shape[1:])
        else:
            seen = scaled_dot_product_attention(
                queries[start:stop].transpose(0, 1)[None],
                key[None],
                value[None],
                attn_mask=rows.mask,
                is_causal=rows.mask is None,
                scale=scale,
                enable_gqa=True,
            )
            out[start:stop] = seen[0].transpose(0, 1)
        start = stop
    return out
