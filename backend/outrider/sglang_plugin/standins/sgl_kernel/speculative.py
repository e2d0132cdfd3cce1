"""The tree of the n-gram drafter, which arrives as a mask."""

from __future__ import annotations

import torch

from .tree import Trees


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    seq_lens: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    num_requests: int,
    num_nodes: int,
) -> None:
    """Fill positions [B * N] and links [B, N] from a mask [B * N * N], whose row i holds node i's ancestors."""
    masks = torch.empty(num_requests, num_nodes, num_nodes, dtype=torch.bool)
    trees = Trees(masks, positions, retrieve_index, retrieve_next_token, retrieve_next_sibling)
    for b, rows in enumerate(tree_mask.view(masks.shape).tolist()):
        parents = [max((j for j in range(i) if rows[i][j]), default=-1) for i in range(num_nodes)]
        trees.write(b, parents, int(seq_lens[b]))
