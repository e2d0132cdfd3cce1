"""What a request fixes, or what comes nearest to it on the lanes that there are."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.policy.kind import Kind
from outrider.policy.options import Option, Row

#: Drafters that copy from text that is there; the others ask a model or a head.
_COPYING = frozenset({"ngram", "suffix", "prediction"})


def distance(kind: Kind, option: Option) -> tuple[int, int]:
    """How far a plan is from what the request fixed: (kind of difference, difference in k); (0, 0) is just that.

    Kinds: a drafter that was meant, one that drafts in a like way, any other, none.
    """
    if not option.k:
        return 3, 0
    step = 0 if kind.k is None else abs(option.k - kind.k)
    if kind.drafter is None:
        is_meant = not kind.policy.drafters or kind.policy.limits_of(option.drafter) is not None
        return (0 if is_meant else 2), step
    if option.drafter == kind.drafter:
        return 0, step
    return (1 if (option.drafter in _COPYING) == (kind.drafter in _COPYING) else 2), step


def nearest(kind: Kind, rows: Sequence[Row]) -> Option | None:
    """The nearest plan, of equals the fastest, and of those the one on the emptiest lane; None without any plan."""
    options = [row.option(entry) for row in rows for entry in row.usable()]
    options += [row.plain for row in rows if row.plain_rate]
    return min(options, key=lambda o: (*distance(kind, o), -o.rate, -o.spare), default=None)
