"""How much of what drafters propose is worth verifying: the best expected tokens per second of one round."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence


def trim(
    num_proposed: Sequence[int], acceptance: Sequence[float], cost_s: Callable[[int], float], num_other_rows: int = 0
) -> list[int]:
    """Draft tokens to keep for each sequence, at most `num_proposed` of it.

    `acceptance[i]` is the chance that a draft token of sequence i is accepted when those before it were, known
    before this round's drafts; `cost_s(rows)` are the seconds of a round with that many rows, of which
    `num_other_rows` are prompt rows. Candidates are taken in descending order of the chance that they are reached and
    accepted; the rate of every prefix of that order is compared and the best one is kept (the scan of TETRIS,
    arXiv 2502.15197).

    No argument depends on the value of a draft token of this round, so dropping the rest biases nothing.
    """
    num_sequences = len(num_proposed)
    kept = [0] * num_sequences
    best, best_rate = list(kept), num_sequences / cost_s(num_sequences + num_other_rows)
    expected = float(num_sequences)
    candidates = [(-acceptance[i], i) for i in range(num_sequences) if num_proposed[i] > 0]
    heapq.heapify(candidates)
    rows = num_sequences + num_other_rows
    while candidates:
        survival, i = heapq.heappop(candidates)
        kept[i] += 1
        rows += 1
        expected -= survival
        rate = expected / cost_s(rows)
        if rate > best_rate:
            best, best_rate = list(kept), rate
        if kept[i] < num_proposed[i]:
            heapq.heappush(candidates, (survival * acceptance[i], i))
    return best
