"""How much of what drafters propose is worth verifying: the best expected tokens per second of one round."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def trim(
    trees: Sequence[Sequence[int]],
    acceptance: Sequence[float | Sequence[float]],
    cost_s: Callable[[int], float],
    num_other_rows: int = 0,
) -> list[list[int]]:
    """Draft nodes to keep of each sequence, ascending and with every ancestor.

    `trees[i]` holds the parents of sequence i's nodes, -1 for the committed text; a chain is a tree, too.
    `acceptance[i]` is the chance that a node of it is accepted when its parent was and no sibling before it, known
    before this round's drafts; or, of a tree that the text alone determines, each node's own chance to be accepted,
    never above its parent's. `cost_s(rows)` are the seconds of a round with that many rows, of which
    `num_other_rows` are prompt rows. Nodes are taken in descending order of the chance that they are accepted; the
    rate of every prefix of that order is compared and the best one is kept (the scan of TETRIS, arXiv 2502.15197).

    No argument depends on the value of a token that was drawn for this round, so dropping the rest biases nothing.
    """
    candidates = sorted(
        (-chance, i, node)
        for i, parents in enumerate(trees)
        for node, chance in enumerate(_chances(parents, acceptance[i]))
    )
    rows = len(trees) + num_other_rows
    expected = float(len(trees))
    best_size, best_rate = 0, expected / cost_s(rows)
    for size, (negative_chance, _, _) in enumerate(candidates, start=1):
        expected -= negative_chance
        rate = expected / cost_s(rows + size)
        if rate > best_rate:
            best_size, best_rate = size, rate
    kept: list[list[int]] = [[] for _ in trees]
    for _, i, node in sorted(candidates[:best_size]):
        kept[i].append(node)
    return [sorted(nodes) for nodes in kept]


def _chances(parents: Sequence[int], acceptance: float | Sequence[float]) -> Sequence[float]:
    return survival(parents, acceptance) if isinstance(acceptance, float) else acceptance


def survival(parents: Sequence[int], acceptance: float) -> list[float]:
    """Each node's chance to be accepted: its parent is, then every sibling before it fails, then it succeeds."""
    chances: list[float] = []
    left: dict[int, float] = {-1: 1.0}
    """Chance that a node is accepted and none of its children so far."""
    for node, parent in enumerate(parents):
        chances.append(left[parent] * acceptance)
        left[parent] *= 1.0 - acceptance
        left[node] = chances[node]
    return chances
