"""Whether settings write the same text, by pairs."""

from __future__ import annotations

from bench_traffic import CODE, NGRAM, request, traffic

from outrider.cli.bench.same_text import Pairs, compared
from outrider.cli.bench.samples import SETTING_OFF
from outrider.cli.bench.traffic import Request


def pairs_of(plain: Request, drafted: Request, *, is_greedy: bool = True) -> Pairs:
    speeds = {SETTING_OFF: 1.0, NGRAM: 1.0}
    return compared(traffic(CODE, 0, speeds, {SETTING_OFF: [plain], NGRAM: [drafted]}), is_greedy=is_greedy)


def test_texts_are_compared_as_far_as_both_go() -> None:
    """One that was cut off is the same; one that parts is not."""
    assert pairs_of(request([1, 2, 3]), request([1, 2])) == Pairs(1, 0, 0)
    assert pairs_of(request([1, 2, 3]), request([1, 9, 3])) == Pairs(1, 0, 1)


def test_a_near_tie_explains_a_difference_only_where_it_begins() -> None:
    """On either side."""
    assert pairs_of(request([1, 2, 3], ties=[1]), request([1, 9, 3])) == Pairs(1, 1, 0)
    assert pairs_of(request([1, 2, 3]), request([1, 9, 3], ties=[1])) == Pairs(1, 1, 0)
    assert pairs_of(request([1, 2, 3], ties=[2]), request([1, 9, 3])) == Pairs(1, 0, 1)


def test_nothing_written_is_no_pair() -> None:
    """Nor is a request that off was not given, or one of the other temperature."""
    assert pairs_of(request([]), request([1])) == Pairs()
    assert pairs_of(request([1], temperature=1.0), request([1], temperature=1.0)) == Pairs()
    assert pairs_of(request([1], temperature=1.0), request([1], temperature=1.0), is_greedy=False) == Pairs(1)
    assert compared(traffic(CODE, 0, {NGRAM: 1.0}, {NGRAM: [request([1])]}), is_greedy=True) == Pairs()
