"""Draft trees: laying one out from what the drafter chose, and walking it along the target's greedy choices."""

from __future__ import annotations

from typing import NamedTuple

import torch

#: The only layout of a mask that SGLang asks for on a CPU: N x N cells per request, without the prefix.
QLEN_ONLY = 1


def build_tree_kernel_efficient_cpu(  # noqa: PLR0913 - the signature is SGLang's
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    seq_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    num_nodes: int,
    mask_mode: int,
) -> None:
    """Fill mask [B * N * N], positions [B * N] and links [B, N] of each request's tree; node 0 is the root.

    Node i + 1 is the drafter's candidate `selected_index[i]`. Candidates come in groups of `topk`; group 0 hangs on
    the root, another on the node whose candidate number stands in `parent_list` at the group's place.
    """
    if int(mask_mode) != QLEN_ONLY:
        raise ValueError(f"the mask layout must be {QLEN_ONLY} on a CPU, not {mask_mode}")
    masks = tree_mask.view(-1, num_nodes, num_nodes)
    trees = Trees(masks, positions, retrieve_index, retrieve_next_token, retrieve_next_sibling)
    for b, (candidates, groups) in enumerate(zip(selected_index.tolist(), parent_list.tolist(), strict=True)):
        node_of = {candidate: node for node, candidate in enumerate(candidates, start=1)}
        parents = [0 if candidate < topk else node_of[groups[candidate // topk]] for candidate in candidates]
        trees.write(b, [-1, *parents], int(seq_lens[b]))


class Trees(NamedTuple):
    """Where the trees of a batch are written; every cell of a request's part is."""

    masks: torch.Tensor
    """[B, N, N] bool, true for a node's ancestors and itself."""
    positions: torch.Tensor
    """[B * N]."""
    flat_index: torch.Tensor
    """[B, N]: numbers of the nodes in the flat batch."""
    next_token: torch.Tensor
    """[B, N]: first child or -1."""
    next_sibling: torch.Tensor
    """[B, N]: next node with the same parent or -1."""

    def write(self, b: int, parents: list[int], seq_len: int) -> None:
        """`parents[i]` is an earlier node, or -1 for the root and for a node that hangs on nothing."""
        num_nodes = len(parents)
        mask = torch.eye(num_nodes, dtype=torch.bool)
        depths = [0] * num_nodes
        first_child, next_sibling = [-1] * num_nodes, [-1] * num_nodes
        latest_child: dict[int, int] = {}
        for node, parent in enumerate(parents):
            if parent < 0:
                continue
            mask[node] |= mask[parent]
            depths[node] = depths[parent] + 1
            if parent in latest_child:
                next_sibling[latest_child[parent]] = node
            else:
                first_child[parent] = node
            latest_child[parent] = node
        self.masks[b] = mask
        self.positions[b * num_nodes : (b + 1) * num_nodes] = seq_len + torch.tensor(depths)
        self.flat_index[b] = torch.arange(b * num_nodes, (b + 1) * num_nodes)
        self.next_token[b] = torch.tensor(first_child)
        self.next_sibling[b] = torch.tensor(next_sibling)


def verify_tree_greedy_cpu(
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk from each root to the child that is the target's choice, as long as there is one.

    Fills `predicts` [B * N] with the target's choice at every node on the way, `accept_index` [B, depth + 1] with
    the nodes, and `accept_token_num` [B] with how many drafts they are.
    """
    flat, choices, tokens = retrive_index.tolist(), target_predict.tolist(), candidates.tolist()
    children, siblings = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    width = accept_index.shape[1]
    for b, choice in enumerate(choices):
        path = [0]
        while len(path) < width:
            child = children[b][path[-1]]
            while child >= 0 and tokens[b][child] != choice[path[-1]]:
                child = siblings[b][child]
            if child < 0:
                break
            path.append(child)
        for i, node in enumerate(path):
            accept_index[b, i] = flat[b][node]
            predicts[flat[b][node]] = choice[node]
        accept_token_num[b] = len(path) - 1
