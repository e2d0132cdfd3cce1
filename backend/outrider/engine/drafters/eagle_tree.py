"""Which nodes a draft tree has: grown by the head's own confidence, or of a fixed shape that calibration chose."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from outrider.cost import MAX_DEPTH
from outrider.engine.checkpoint import section
from outrider.errors import ModelError

#: [depth][TOP_K]: how often the token of each rank is right.
Accuracy = tuple[tuple[float, ...], ...]
#: Children of a node that a growing tree looks at, and nodes of one depth that it goes on from.
TOP_K = 4
#: How often the token of each rank is right at each depth, where a head came without calibration.
USUAL_ACCURACY: Accuracy = tuple(
    tuple(0.55 * 0.9**depth * 0.3**rank for rank in range(TOP_K)) for depth in range(MAX_DEPTH)
)
#: A path's rank among its siblings, from the root on.
Ranks = tuple[int, ...]


@dataclass(slots=True)
class Nodes:
    """Nodes of a growing tree, parents before children."""

    tokens: list[int] = field(default_factory=list)
    """Draft ids."""
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """Sums of log probabilities along the path."""

    def add(self, parent: int, tokens: Sequence[int], logprobs: Sequence[float]) -> range:
        """Children of a node (-1: the root); their numbers."""
        first, above = len(self.tokens), 0.0 if parent < 0 else self.scores[parent]
        self.tokens.extend(tokens)
        self.parents.extend([parent] * len(tokens))
        self.scores.extend(above + logprob for logprob in logprobs)
        return range(first, len(self.tokens))

    def best(self, count: int) -> list[int]:
        """The `count` nodes of the highest score, ascending, each with all its ancestors.

        Scores fall along a path, and of equals the elder one is taken.
        """
        return sorted(self.ranked()[:count])

    def ranked(self) -> list[int]:
        """All nodes, the best first."""
        return sorted(range(len(self.tokens)), key=lambda node: (-self.scores[node], node))


#: Frontier nodes -> logits [n, D] of what follows each.
Expand = Callable[[list[int], Nodes], torch.Tensor]


def grow(first: torch.Tensor, expand: Expand, k: int, accuracy: Accuracy, min_gain: float = 0.0) -> Nodes:
    """EAGLE-2's tree (arXiv 2406.16858) before its last selection: first [D] are the logits after the text.

    Of every frontier node the `TOP_K` likeliest children are added, and the `TOP_K` best new nodes are the next
    frontier; none whose children cannot be among the best `k`, being no likelier than their parent. It ends at
    `MAX_DEPTH`, or where by the head's usual accuracy another draft step adds fewer accepted drafts than `min_gain`.
    """
    nodes = Nodes()
    new = _extend(nodes, [-1], first.unsqueeze(0))
    for depth in range(1, min(MAX_DEPTH, k)):
        ranked = nodes.ranked()
        frontier = sorted([node for node in ranked[: k - 1] if node >= new[0]][:TOP_K])
        if not frontier or _gain(nodes, ranked[:k], frontier, accuracy[min(depth, len(accuracy) - 1)]) < min_gain:
            break
        new = _extend(nodes, frontier, expand(frontier, nodes))
    return nodes


def _gain(nodes: Nodes, kept: Sequence[int], frontier: Sequence[int], accuracy: Sequence[float]) -> float:
    """By how much the chances of the best nodes are likely to grow when these are followed."""
    chances = [math.exp(nodes.scores[node]) for node in kept]
    likely = [math.exp(nodes.scores[node]) * rate for node in frontier for rate in accuracy]
    return sum(heapq.nlargest(len(kept), chances + likely)) - sum(chances)


def _extend(nodes: Nodes, parents: list[int], logits: torch.Tensor) -> list[int]:
    values, ids = logits.log_softmax(dim=-1).topk(min(TOP_K, logits.shape[-1]), dim=-1)
    new: list[int] = []
    for parent, row, tokens in zip(parents, values.tolist(), ids.tolist(), strict=True):
        new.extend(nodes.add(parent, tokens, row))
    return new


def accuracy_of(path: Path, data: Mapping[str, Any], usual: Accuracy, num_depths: int | None = None) -> Accuracy:
    """What training found, from `outrider.accuracy` in a head's config.json; `usual` where a head came without.

    ModelError when that is no table of `num_depths` (None: any number of) rows."""
    rows = section(path, data, "outrider").get("accuracy")
    if not rows:
        return usual
    is_table = isinstance(rows, list) and all(isinstance(row, list) and len(row) == TOP_K for row in rows)
    if not is_table or num_depths not in (None, len(rows)):
        raise ModelError(f"{path}: outrider.accuracy must be [{num_depths or 'depths'}][{TOP_K}]")
    if not all(type(rate) in (int, float) and 0 <= rate <= 1 for row in rows for rate in row):
        raise ModelError(f"{path}: outrider.accuracy must hold rates between 0 and 1")
    return tuple(tuple(map(float, row)) for row in rows)


def best_shape(accuracy: Sequence[Sequence[float]], k: int) -> list[Ranks]:
    """The `k` likeliest paths, parents first, where the token of rank r at depth d is right with accuracy[d][r].

    Medusa's calibrated sparse tree (arXiv 2401.10774); with an EAGLE head's accuracies, EAGLE-1's static one.
    """
    chosen: list[Ranks] = []
    heap: list[tuple[float, Ranks]] = [(-accuracy[0][0], (0,))]
    while heap and len(chosen) < k:
        negative, path = heapq.heappop(heap)
        chosen.append(path)
        depth, rank = len(path) - 1, path[-1]
        if rank + 1 < len(accuracy[depth]) and accuracy[depth][rank] > 0:
            heapq.heappush(
                heap, (negative * accuracy[depth][rank + 1] / accuracy[depth][rank], (*path[:-1], rank + 1))
            )
        if depth + 1 < len(accuracy):
            heapq.heappush(heap, (negative * accuracy[depth + 1][0], (*path, 0)))
    return chosen


def chances_of(paths: Sequence[Ranks], accuracy: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """How likely each path is right, by calibration."""
    return tuple(math.prod(accuracy[depth][rank] for depth, rank in enumerate(path)) for path in paths)


def parents_of(paths: Sequence[Ranks]) -> list[int]:
    """Of each node the place of its parent; -1 for children of the root."""
    place = {path: i for i, path in enumerate(paths)}
    return [place[path[:-1]] if len(path) > 1 else -1 for path in paths]
