"""Exact sampling in verification on a CPU: SGLang's tree becomes our proposal, and our rule decides.

Letters in shapes: B requests, N tree nodes per request with the root, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from outrider.speculation.noise import Noise
from outrider.speculation.proposal import TopKTree
from outrider.speculation.target import SamplingLaw, Target
from outrider.speculation.tree import sample_and_match


@dataclass(frozen=True, slots=True)
class Chooser:
    """How one request chooses its next tokens."""

    law: SamplingLaw
    noise: Noise


def sampling_law(temperature: float, top_k: int, top_p: float, min_p: float, vocab: int) -> SamplingLaw:
    """SGLang writes greedy as top-k 1 and no top-k as a number beyond every vocabulary."""
    if top_k == 1:
        return SamplingLaw(temperature=0.0)
    return SamplingLaw(temperature, 0 if top_k >= vocab else top_k, top_p, min_p)


def chooser(sampling_params: Any, seed: int, position: int, vocab: int) -> Chooser:
    """`position` is the next token's index in the whole text, which its noise belongs to."""
    p = sampling_params
    law = sampling_law(p.temperature, p.top_k, p.top_p, p.min_p, vocab)
    return Chooser(law, Noise(seed, position, is_seeded=True))


def tree_of(candidates: Sequence[int], first: Sequence[int], sibling: Sequence[int]) -> tuple[TopKTree, list[int]]:
    """[N] tokens and links of one request -> the proposal below the root, and which node each of its tokens is.

    Nodes that hang on nothing fill up SGLang's fixed width and are left out.
    """
    parent_of: dict[int, int] = {}
    for parent in range(len(candidates)):
        child = first[parent]
        while child >= 0:
            parent_of[child] = parent
            child = sibling[child]
    nodes = [0]
    number: dict[int, int] = {0: -1}
    for node in sorted(parent_of):
        if parent_of[node] in number:
            number[node] = len(nodes) - 1
            nodes.append(node)
    parents = tuple(number[parent_of[node]] for node in nodes[1:])
    return TopKTree(tuple(candidates[node] for node in nodes[1:]), parents), nodes


def verify_trees(  # noqa: PLR0913 - what SGLang hands over
    choosers: Sequence[Chooser],
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    logits: torch.Tensor,
    **_: object,
) -> None:
    """Walk each tree by sample-and-match. `logits` [B, N, V] are final but for temperature and filters.

    Fills `predicts` [B * N] with the token chosen at each node on the way, `accept_index` [B, depth + 1] with those
    nodes in the flat batch and `accept_token_num` [B] with how many drafts they are.
    """
    trees = zip(candidates.tolist(), retrive_next_token.tolist(), retrive_next_sibling.tolist(), strict=True)
    for b, (one, links) in enumerate(zip(choosers, trees, strict=True)):
        proposal, nodes = tree_of(*links)
        rows = logits[b] if len(nodes) == logits.shape[1] else logits[b, nodes]
        verified = sample_and_match(Target(rows, one.law), one.noise, proposal)
        path = [0, *(nodes[i + 1] for i in verified.path)]
        flat = retrive_index[b, path]
        predicts[flat] = torch.tensor(verified.token_ids, dtype=predicts.dtype)
        accept_index[b, : len(path)] = flat.to(accept_index.dtype)
        accept_token_num[b] = verified.num_accepted


def sample_rows(probs: torch.Tensor, choosers: Sequence[Chooser]) -> torch.Tensor:
    """probs [B, V] after temperature, before filters -> [B] int32: plain decoding's tokens, by the same noise."""
    tokens = []
    for row, one in zip(probs, choosers, strict=True):
        target = Target(row.double().log()[None], one.law)
        tokens.append(sample_and_match(target, one.noise, _NOTHING).token_ids[0])
    return torch.tensor(tokens, dtype=torch.int32)


_NOTHING = TopKTree((), ())
