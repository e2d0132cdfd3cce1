"""The published speed-up of speculative decoding, as a prior where nothing was measured (arXiv 2211.17192, thm 3.8).

Costs are in units of one plain decode step at the same batch.
"""

from __future__ import annotations

import math

#: Past this many drafts the gain of one more is below any measurement unless acceptance is nearly certain.
MAX_K = 64


def expected_tokens(alpha: float, k: int) -> float:
    """Mean tokens per target pass, the bonus included, when each of `k` drafts is accepted with probability `alpha`.

    The closed form is (1 - alpha ** (k + 1)) / (1 - alpha); summed here, which holds at alpha = 1 too.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"the acceptance must be between 0 and 1, not {alpha}")
    if k < 0:
        raise ValueError(f"k must not be negative, not {k}")
    return math.fsum(alpha**i for i in range(k + 1))


def pass_cost(k: int, draft_cost: float, verify_cost: float = 1.0) -> float:
    """Cost of one pass: the verification and `k` draft steps."""
    if draft_cost < 0.0 or verify_cost <= 0.0:
        raise ValueError("the draft cost must not be negative, and the verify cost must be positive")
    return verify_cost + k * draft_cost


def speedup(alpha: float, k: int, draft_cost: float, verify_cost: float = 1.0) -> float:
    """How much faster than plain decoding: expected tokens over the cost of a pass."""
    return expected_tokens(alpha, k) / pass_cost(k, draft_cost, verify_cost)


def best_k(alpha: float, draft_cost: float, verify_cost: float = 1.0, max_k: int = MAX_K) -> int:
    """The k up to `max_k` that gains most; 0, which is plain decoding, when none gains."""
    best = max(range(max_k + 1), key=lambda k: speedup(alpha, k, draft_cost, verify_cost))
    return best if speedup(alpha, best, draft_cost, verify_cost) > 1.0 else 0
