"""What a sequence counts of its verified steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.engine.drafters.guarded import GuardedDrafter
from outrider.engine.drafters.ngram import NgramDrafter
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.sequence import PRIOR_ACCEPTANCE, PRIOR_WEIGHT, GenerateRequest, Sequence
from outrider.engine.stops import StopStrings
from outrider.engine.tokenizer import Detokenizer
from outrider.policy.plan import Plan
from outrider.speculation.proposal import PointMass, Proposal, TopKTree
from outrider.speculation.target import SamplingLaw

#: Roots 0 and 1; 2 follows 0, 3 and 4 follow 1.
SHAPE = (1, 2, 3, 4, 5), (-1, -1, 0, 1, 1)


@pytest.mark.parametrize(
    ("proposal", "path", "num_emitted", "by_draft", "num_rejected"),
    [
        (PointMass((1, 2, 3)), (0, 1, 2), 4, (1, 1, 1), 0),
        (PointMass((1, 2, 3)), (0, 1), 3, (1, 1), 1),
        (PointMass((1, 2, 3)), (), 1, (), 1),
        # Without chances the nodes stand likeliest first; with them these tell. Siblings are tried as they stand.
        (TopKTree(*SHAPE), (1, 4), 3, (0, 1, 0, 0, 1), 2),
        (TopKTree(*SHAPE), (0,), 2, (1,), 1),
        (TopKTree(*SHAPE, (0.3, 0.6, 0.1, 0.2, 0.5)), (1, 4), 3, (1, 1), 2),
        (TopKTree(*SHAPE, (0.3, 0.6, 0.1, 0.2, 0.5)), (1, 3), 3, (1, 0, 0, 1), 1),
        # The answer ended before the second.
        (TopKTree(*SHAPE), (1, 4), 1, (0, 1), 2),
    ],
)
def test_drafts_are_counted_by_rank_and_by_what_became_of_them(
    toy_folder: Path,
    proposal: Proposal,
    path: tuple[int, ...],
    num_emitted: int,
    by_draft: tuple[int, ...],
    num_rejected: int,
) -> None:
    """The first is the likeliest, whatever the shape, so that what smaller and larger trees are worth can be told;
    how often one is accepted is of those that were tried: not of what follows a rejected one or of later siblings."""
    engine = Engine(toy_folder, EngineLimits(max_total_tokens=256, context_length=64))
    request = GenerateRequest("r", (0, 1), SamplingLaw(0.0), 30, Plan("ngram", 5), seed=1)
    drafter = GuardedDrafter(lambda: NgramDrafter((0, 1)), 64)
    sequence = Sequence(request, Detokenizer(engine.tokenizer), StopStrings(()), drafter)
    for _ in range(2):
        sequence.count_verify(proposal, path, num_emitted)
    assert sequence.stats is not None and sequence.stats.by_draft == tuple(2 * count for count in by_draft)
    num_tried = 2 * (sum(by_draft) + num_rejected)
    prior = PRIOR_ACCEPTANCE * PRIOR_WEIGHT
    assert sequence.acceptance == pytest.approx((2 * sum(by_draft) + prior) / (num_tried + PRIOR_WEIGHT))
    assert sequence.stats.num_proposed == 2 * len(proposal)
